"""The one live object behind the API: engine, readout, admission, and whether all of it works.

Starts in the background, so that the process can answer "starting" meanwhile. An engine that is
late or goes away is waited for, again and again; a tokenizer that does not fit stays refused.
Knows no HTTP.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from django.conf import settings

from backend.client import Engine, EngineClient, EngineDescription
from backend.config import Config
from backend.errors import EngineError, TokenizerError
from backend.tokenizer import ChatTokenizer, load_tokenizer
from evaluations.admission import Admission
from evaluations.catalogue import ALIAS, is_served
from evaluations.exceptions import NotReady, UnknownModel
from evaluations.questions import Evaluation, EvaluationRequest
from evaluations.readout import Candidate, Readout, candidates, choose_readout
from evaluations.service import evaluate

logger = logging.getLogger(__name__)

Status = Literal["starting", "ok", "unavailable"]

HEALTH_SECONDS = 2.0
HEALTH_MAX_AGE = 1.0
_DESCRIBE_SECONDS = 10.0
_RETRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Health:
    """Whether evaluations can be answered now.

    Attributes:
        status: `starting` until the first readout is verified, `unavailable` when that failed or
            the engine does not answer.
        startup_seconds: how long the start took; `None` until it is over.
        reason: a sentence, where the status is not `ok`.
    """

    status: Status
    startup_seconds: float | None
    reason: str | None = None


class Runtime:
    """Starts, watches and uses one engine. Belongs to one event loop.

    Attributes:
        readout: verified; `None` until the start is over.
        startup_seconds: how long the start took; `None` until it is over.
    """

    def __init__(
        self,
        config: Config,
        client: Engine,
        load: Callable[[Config], ChatTokenizer] = load_tokenizer,
    ) -> None:
        self.readout: Readout | None = None
        self.startup_seconds: float | None = None
        self._config = config
        self._client = client
        self._load = load
        self._admission = Admission(config.max_concurrent_requests)
        self._failure: str | None = None
        self._engine_answers = False
        self._starting: asyncio.Task[None] | None = None
        self._probe: asyncio.Task[bool] | None = None
        self._probed_at = 0.0

    @property
    def status(self) -> Status:
        """As last known; `health` asks."""
        if self.readout is None:
            return "starting" if self._failure is None else "unavailable"
        return "ok" if self._engine_answers else "unavailable"

    def start(self) -> None:
        """Begin to start in the background; further calls change nothing."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(), name="openjev start-up")

    async def stop(self) -> None:
        """End everything this object began, and close the connections to the engine."""
        owned = [task for task in (self._starting, self._probe) if task is not None]
        for task in owned:
            task.cancel()
        await asyncio.gather(*owned, return_exceptions=True)
        await self._client.aclose()

    async def health(self) -> Health:
        """Ask the engine how it is; callers at the same time share one answer.

        Answers within `HEALTH_SECONDS`, with knowledge at most `HEALTH_MAX_AGE` seconds old.
        """
        if self.readout is None:
            reason = self._failure or "The model is still being loaded and checked."
            return Health(self.status, self.startup_seconds, reason)
        now = asyncio.get_running_loop().time()
        if self._probe is None or (self._probe.done() and now - self._probed_at > HEALTH_MAX_AGE):
            self._probe = asyncio.create_task(self._ask_engine(), name="openjev health")
        # One caller that gives up must not take the answer from the others.
        if await asyncio.shield(self._probe):
            return Health("ok", self.startup_seconds)
        reason = f"The engine at {self._config.backend_url} does not answer."
        return Health("unavailable", self.startup_seconds, reason)

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
                f"The model {request.model[:80]!r} is not served here. Ask for {ALIAS!r} or "
                f"{self._config.served_model_name!r}."
            )
        if self.readout is None:
            raise NotReady(
                "The model is still being loaded and checked. Try again in a few seconds."
                if self._failure is None
                else f"No model is ready to answer. {self._failure}"
            )
        with self._admission.slot():
            return await evaluate(
                request, readout=self.readout, client=self._client, config=self._config
            )

    async def _ask_engine(self) -> bool:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                self._engine_answers = await self._client.is_healthy(
                    deadline=loop.time() + HEALTH_SECONDS
                )
        except TimeoutError:
            self._engine_answers = False
        self._probed_at = loop.time()
        return self._engine_answers

    async def _start(self) -> None:
        begun = asyncio.get_running_loop().time()
        try:
            # The engine, a process of its own, starts meanwhile.
            tokenizer, found = await asyncio.to_thread(self._load_readouts)
            self.readout = await self._await_engine(tokenizer, found, begun)
        except TokenizerError as error:
            self._fail(str(error))
        except Exception as error:
            logger.exception("The start-up failed.")
            self._fail(str(error) or f"The start-up failed with {type(error).__name__}.")
        else:
            self._failure = None
            self._engine_answers = True
            self.startup_seconds = asyncio.get_running_loop().time() - begun
            logger.info(
                "Ready after %.1f s with readout %s.", self.startup_seconds, self.readout.version
            )

    def _load_readouts(self) -> tuple[ChatTokenizer, list[Candidate]]:
        tokenizer = self._load(self._config)
        if isinstance(self._client, EngineClient):
            self._client.vocabulary_size = tokenizer.vocabulary_size
        return tokenizer, candidates(tokenizer, count=self._config.max_answers)

    async def _await_engine(
        self, tokenizer: ChatTokenizer, found: list[Candidate], begun: float
    ) -> Readout:
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._check_fit(
                    await self._client.describe(deadline=loop.time() + _DESCRIBE_SECONDS)
                )
                return await choose_readout(
                    found,
                    tokenizer,
                    self._client,
                    self._config,
                    deadline=loop.time() + self._config.request_timeout,
                )
            except EngineError as error:
                logger.debug("The engine is not ready: %s", error)
                waited = loop.time() - begun
                if self._failure is None and waited > self._config.startup_timeout:
                    self._fail(
                        f"The engine at {self._config.backend_url} was not ready within "
                        f"{self._config.startup_timeout:g} seconds (OPENJEV_STARTUP_TIMEOUT): "
                        f"{error} It is still being waited for."
                    )
            await asyncio.sleep(_RETRY_SECONDS)

    def _check_fit(self, engine: EngineDescription) -> None:
        config = self._config
        if engine.model != config.served_model_name:
            raise TokenizerError(
                f"The engine at {config.backend_url} serves {engine.model!r}, but this server is "
                f"set up for {config.served_model_name!r}. Correct OPENJEV_PROFILE, "
                "OPENJEV_SERVED_MODEL_NAME or OPENJEV_BACKEND_URL."
            )
        if engine.max_input_tokens < config.max_input_tokens:
            raise TokenizerError(
                f"The engine at {config.backend_url} takes inputs of fewer than "
                f"{engine.max_input_tokens} tokens, but OPENJEV_MAX_INPUT_TOKENS is "
                f"{config.max_input_tokens}. Start the engine with a longer context, or lower "
                "that setting."
            )

    def _fail(self, reason: str) -> None:
        self._failure = reason
        logger.error("%s", reason)


@cache
def get_runtime() -> Runtime:
    """Give the process's one runtime, built from the settings on first use."""
    config: Config = settings.OPENJEV
    client = EngineClient(
        config.backend_url,
        api_key=config.backend_api_key,
        max_in_flight=config.max_concurrent_branches,
    )
    return Runtime(config, client)
