"""The one live object behind the API: engine, readout, admission, and whether all of it works.

Starts in the background (`evaluations.start`), so that the process can answer "starting" meanwhile.
An engine that was away is looked at before it is used again, in case another has taken its place.
Why something fails is for the log, since it may name files and addresses; callers learn only that
it does. Knows no HTTP.
"""

import asyncio
import gc
import logging
from collections.abc import Callable
from functools import cache
from typing import Literal

from django.conf import settings

from backend.client import EngineClient
from backend.config import Config
from backend.engine import Engine
from backend.errors import (
    EngineBusy,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    SetupError,
)
from backend.fit import LOOK_SECONDS, require_fit
from backend.serving.share import Share
from backend.tokenizer import ChatTokenizer, load_tokenizer
from evaluations.admission import Admission
from evaluations.catalogue import ALIAS, is_served
from evaluations.exceptions import NotReady, UnknownModel
from evaluations.questions import Evaluation, EvaluationRequest
from evaluations.quoting import shortened
from evaluations.readout import Readout
from evaluations.service import evaluate
from evaluations.start import Start

logger = logging.getLogger(__name__)

Status = Literal["starting", "ok", "unavailable"]
"""`starting` until the first readout is verified, `unavailable` when that failed or the engine does
not answer."""

HEALTH_SECONDS = 4.0  # a busy SGLang answers after the step it is at
HEALTH_MAX_AGE = 1.0
_YOUNG_OBJECTS = 10_000  # before the collector looks; Python's own is 700 to 2000
_FAILED = "The model could not be made ready; the server's log says why. Try again later."
_STARTING = "The model is still being loaded and checked. Try again in a few seconds."


class Runtime:
    """Starts, watches and uses one engine. Belongs to one event loop.

    Attributes:
        readout: verified; `None` until the start is over.
        startup_seconds: how long the start took; `None` until it is over.
    """

    def __init__(
        self,
        config: Config,
        engine: Engine,
        load: Callable[[Config], ChatTokenizer] = load_tokenizer,
        share: Share | None = None,
        when_ready: Callable[[], object] = lambda: None,
    ) -> None:
        self.readout: Readout | None = None
        self.startup_seconds: float | None = None
        self._config = config
        self._engine = engine
        self._start = Start(config, engine, load)
        self._when_ready = when_ready
        self._admission = Admission(config.max_concurrent_requests, share or Share())
        self._engine_answers = False
        self._was_away = False  # since it was verified: another may have taken its place
        self._looking = asyncio.Lock()
        self._starting: asyncio.Task[None] | None = None
        self._probe: asyncio.Task[None] | None = None
        self._probed_at = 0.0

    @property
    def status(self) -> Status:
        """As last known; `health` asks."""
        if self.readout is None:
            return "unavailable" if self._start.has_failed else "starting"
        return "ok" if self._engine_answers else "unavailable"

    def start(self) -> None:
        """Begin to start in the background; further calls change nothing."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._make_ready(), name="openjev start-up")

    async def stop(self) -> None:
        """End everything this object began, and close the connections to the engine."""
        owned = [task for task in (self._starting, self._probe) if task is not None]
        for task in owned:
            task.cancel()
        await asyncio.gather(*owned, return_exceptions=True)
        await self._engine.aclose()

    async def refused(self) -> str:
        """Wait until it is certain that the first start cannot succeed, however long one waits.

        Returns:
            Why: one or more sentences that are in the log already. They may name files and
            addresses, so they are for whoever runs the server.
        """
        return await self._start.refused()

    async def health(self) -> Status:
        """Ask the engine how it is; callers at the same time share one answer.

        Answers within `HEALTH_SECONDS`, with knowledge at most `HEALTH_MAX_AGE` seconds old.
        """
        if self.readout is not None:
            now = asyncio.get_running_loop().time()
            is_old = now - self._probed_at > HEALTH_MAX_AGE
            if self._probe is None or (self._probe.done() and is_old):
                self._probe = asyncio.create_task(self._ask_engine(), name="openjev health")
            # One caller that gives up must not take the answer from the others.
            await asyncio.shield(self._probe)
        return self.status

    async def evaluate(self, request: EvaluationRequest) -> Evaluation:
        """Answer a request, if there is room for it.

        Raises:
            UnknownModel: it asks for a model that is not served.
            NotReady: there is no verified readout (yet).
            Overloaded: as many evaluations as allowed are running.
            EvaluationError: or EngineError, see `evaluations.service.evaluate`.
        """
        if not is_served(request.model, self._config):
            raise UnknownModel(
                f"The model {shortened(request.model)!r} is not served here. Ask for {ALIAS!r} or "
                f"{self._config.served_model_name!r}."
            )
        if self.readout is None:
            raise NotReady(_FAILED if self._start.has_failed else _STARTING)
        with self._admission:
            readout = await self._verified(self.readout, self._config.request_timeout)
            try:
                return await evaluate(
                    request, readout=readout, engine=self._engine, config=self._config
                )
            except EngineUnavailable as error:
                self._was_away |= not isinstance(error, EngineBusy)
                raise

    async def _verified(self, readout: Readout, seconds: float) -> Readout:
        """Look at an engine that was away, before it is used again.

        Raises:
            NotReady: another one, which does not fit, has taken its place.
            EngineError: it is still away, or does not answer as it should.
        """
        if not self._was_away:
            return readout
        deadline = asyncio.get_running_loop().time() + min(seconds, LOOK_SECONDS)
        try:
            async with asyncio.timeout_at(deadline), self._looking:
                if self._was_away:  # else somebody else has looked meanwhile
                    await require_fit(
                        self._engine, readout.tokenizer, self._config, deadline=deadline
                    )
                    self._was_away = False
                if self.readout is None:
                    raise NotReady(_FAILED)
        except TimeoutError:
            raise EngineTimeout() from None
        except SetupError as error:
            self._start.refuse(str(error))
            self.readout, self._was_away = None, False
            self._starting = asyncio.create_task(self._make_ready(), name="openjev start-up")
            raise NotReady(_FAILED) from error
        return readout

    async def _ask_engine(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                answers = await self._engine.is_healthy(deadline=loop.time() + HEALTH_SECONDS)
                if answers and self.readout is not None:
                    await self._verified(self.readout, HEALTH_SECONDS)
        except (TimeoutError, EngineError, NotReady):
            answers = False
        self._was_away |= not answers
        if answers != self._engine_answers:
            level = logging.INFO if answers else logging.ERROR
            change = "answers again" if answers else "does not answer any more"
            logger.log(level, "The engine at %s %s.", self._config.backend_url, change)
        self._engine_answers = answers
        self._probed_at = loop.time()

    async def _make_ready(self) -> None:
        begun = asyncio.get_running_loop().time()
        self.readout = await self._start.run()
        if self.readout is not None:
            self._engine_answers = True
            self.startup_seconds = asyncio.get_running_loop().time() - begun
            logger.info(
                "Checked after %.1f s; readout %s.", self.startup_seconds, self.readout.version
            )
            self._when_ready()


@cache
def get_runtime() -> Runtime:
    """Give the process's one runtime, built from the settings on first use."""
    config: Config = settings.OPENJEV
    share: Share = settings.OPENJEV_SHARE
    engine = EngineClient(
        config.backend_url,
        api_key=config.backend_api_key,
        max_in_flight=share.part_of(config.max_concurrent_branches),
    )
    return Runtime(config, engine, share=share, when_ready=_spare_collector)


def _spare_collector() -> None:
    """Keep the garbage collector from looking through what the start has made, which stays.

    It stops everything while it looks, with Django and a tokenizer loaded for some 10 ms each time.
    A request makes thousands of objects and leaves hardly any that reference counts do not free, so
    the young ones are looked through every few requests instead of several times in each.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)
