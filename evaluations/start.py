"""From nothing to a verified readout: tokenizer, an engine that fits, a form of answer it gives.

An engine that is late is waited for, again and again; one that does not fit is refused, and looked
at again later, in case another takes its place. What is said here is for the log: it may name files
and addresses.
"""

import asyncio
import logging
from collections.abc import Callable

from backend.config import Config
from backend.engine import Engine
from backend.errors import EngineError, SetupError
from backend.fit import HOPELESS, LOOK_SECONDS, caveats, require_fit, why_hopeless
from backend.tokenizer import ChatTokenizer
from evaluations.answer_forms import Candidate, candidates, choose_readout
from evaluations.readout import Readout

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
_RETRY_REFUSED_SECONDS = 5.0


class Start:
    """Makes an engine ready, as often as that is needed.

    Attributes:
        has_failed: the last start was refused, or took longer than it may; it may yet succeed.
        has_succeeded: a start has been over once; from then on nothing is refused for good.
    """

    def __init__(
        self, config: Config, engine: Engine, load: Callable[[Config], ChatTokenizer]
    ) -> None:
        self.has_failed = False
        self.has_succeeded = False
        self._config = config
        self._engine = engine
        self._load = load
        self._reason = ""
        self._refused = asyncio.Event()
        self._said: set[str] = set()

    async def refused(self) -> str:
        """Wait until it is certain that the first start cannot succeed, however long one waits.

        Returns:
            Why: one or more sentences that are in the log already.
        """
        await self._refused.wait()
        return self._reason

    def refuse(self, reason: str) -> None:
        """Say that a start cannot succeed as things are.

        A server that has worked stays, and waits for the engine that it worked with.
        """
        self._say(logging.ERROR, reason)
        self.has_failed = True
        if not self.has_succeeded:
            self._reason = reason
            self._refused.set()

    async def run(self) -> Readout | None:
        """Wait for an engine that fits, and choose how it is read.

        Returns:
            The readout; `None` when no engine could help.
        """
        begun = asyncio.get_running_loop().time()
        try:
            # The engine, a process of its own, starts meanwhile.
            tokenizer, found = await asyncio.to_thread(self._load_candidates)
            readout = await self._await_engine(tokenizer, found, begun)
        except SetupError as error:
            self.refuse(str(error))
            return None
        except Exception:
            logger.exception("The start-up failed.")
            self.refuse("The start-up failed unexpectedly; the log says how.")
            return None
        self.has_failed = False
        self.has_succeeded = True
        self._refused.clear()
        return readout

    def _load_candidates(self) -> tuple[ChatTokenizer, list[Candidate]]:
        tokenizer = self._load(self._config)
        self._engine.vocabulary_size = tokenizer.vocabulary_size
        return tokenizer, candidates(tokenizer, count=self._config.max_answers)

    async def _await_engine(
        self, tokenizer: ChatTokenizer, found: list[Candidate], begun: float
    ) -> Readout:
        loop = asyncio.get_running_loop()
        while True:
            pause = _RETRY_SECONDS
            try:
                described = await require_fit(
                    self._engine, tokenizer, self._config, deadline=loop.time() + LOOK_SECONDS
                )
                self._say(logging.INFO, f"Found at {self._config.backend_url}: {described}.")
                for caveat in caveats(described, self._config):
                    self._say(logging.WARNING, caveat)
                return await choose_readout(
                    found,
                    tokenizer,
                    self._engine,
                    self._config,
                    deadline=loop.time() + self._config.request_timeout,
                )
            except HOPELESS as error:
                self.refuse(why_hopeless(error, self._config))
                pause = _RETRY_REFUSED_SECONDS  # somebody may start another engine in its place
            except EngineError as error:
                self._wait_for_engine(str(error), loop.time() - begun)
            await asyncio.sleep(pause)

    def _wait_for_engine(self, reason: str, seconds: float) -> None:
        url = self._config.backend_url
        self._say(logging.INFO, f"Waiting for the engine at {url}: {reason}")
        if not self.has_failed and seconds > self._config.startup_timeout:
            self.has_failed = True
            logger.error(
                "The engine at %s was not ready within %g seconds (OPENJEV_STARTUP_TIMEOUT): %s "
                "It is still being waited for.",
                url,
                self._config.startup_timeout,
                reason,
            )

    def _say(self, level: int, message: str) -> None:
        """Log a message; one that comes again with every new try is logged once."""
        if message not in self._said:
            self._said.add(message)
            logger.log(level, "%s", message)
