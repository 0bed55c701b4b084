"""What ends a run besides a signal: engine and start are watched, and their end is told.

Each watcher waits for one thing, says in the log why the run ends, and gives the exit code. None of
them ends anything itself.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from backend.config import Config
from backend.engine_log import Phase
from backend.errors import EngineMismatch
from backend.health import (
    wait_until_healthy,
    wait_until_serving,
    wait_until_silent,
    why_not_serving,
)
from backend.lifespan import Served
from backend.progress import StartProgress
from backend.supervisor import EngineProcess

logger = logging.getLogger(__name__)

FAILED = 1


@dataclass(frozen=True, slots=True)
class Watched:
    """One run, from its start on.

    Attributes:
        engine: the one that was started; `None` when it runs elsewhere.
        lifespan: of the application; `None` where the engine runs alone.
        url: where the API can be reached, or the engine that runs alone.
        config: how long things may take, and what the engine must be.
        progress: of the start.
        say: tells the person who started it; one line.
        when_ready: called when the start is over.
    """

    engine: EngineProcess | None
    lifespan: Served | None
    url: str
    config: Config
    progress: StartProgress
    say: Callable[[str], None]
    when_ready: Callable[[], object]

    def watchers(self) -> list[Coroutine[Any, Any, int]]:
        """What to wait for, all at once: the first that is done decides."""
        watchers = [self._start_and_silence()]
        if self.engine is not None:
            watchers.append(self._end(self.engine))
        if self.lifespan is not None:
            watchers.append(self._refusal(self.lifespan))
        return watchers

    async def _start_and_silence(self) -> int:
        """Tell how the start goes, then whether an engine of ours still answers."""
        telling = asyncio.create_task(self.progress.tell())
        try:
            is_ready = await self._readiness()
        except EngineMismatch as error:
            return self._give_up(str(error))
        finally:
            telling.cancel()
        if not is_ready:
            logger.error(
                "Not ready within %g seconds (OPENJEV_STARTUP_TIMEOUT): giving up while %s. %s",
                self.config.startup_timeout,
                self.progress.phase.value,
                await why_not_serving(self.config),
            )
            return FAILED
        self.when_ready()
        self.say(f"Ready in {self.progress.seconds:.1f} s at {self.url}. Ctrl-C stops it.")
        if self.engine is None:  # one that runs elsewhere may come back
            await asyncio.Event().wait()
        else:
            await self._silence(self.engine)
        return FAILED

    async def _readiness(self) -> bool:
        seconds = self.config.startup_timeout
        if self.lifespan is None:
            return await wait_until_serving(self.config, seconds=seconds)
        try:
            async with asyncio.timeout(seconds):
                await self.lifespan.ready()
                return await wait_until_healthy(self.url, seconds=seconds)
        except TimeoutError:
            return False

    async def _silence(self, engine: EngineProcess) -> None:
        seconds = self.config.hang_timeout
        await wait_until_silent(self.config, seconds=seconds)
        logger.error(
            "The engine has not answered for %g seconds (OPENJEV_HANG_TIMEOUT) and counts as "
            "dead. The last it said:%s",
            seconds,
            _quoted(await engine.last_words()),
        )

    async def _end(self, engine: EngineProcess) -> int:
        code = await engine.wait()
        words = await engine.last_words()
        logger.error(
            "The engine ended by itself (exit code %d). The last it said:%s", code, _quoted(words)
        )
        if self.progress.port_is_taken:
            logger.error(
                "Another server took the engine's port. Choose another with --backend-port."
            )
        return FAILED

    async def _refusal(self, lifespan: Served) -> int:
        return self._give_up(await lifespan.refused())

    def _give_up(self, reason: str) -> int:
        logger.error("Giving up, since waiting cannot help: %s", reason)
        is_ours = self.engine is not None and self.config.backend_url in reason
        if is_ours and not self.progress.has_reached(Phase.WARMING_UP):
            logger.error(
                "The engine has not said yet that it listens. If another server took its port, "
                "choose another with --backend-port."
            )
        return FAILED


def _quoted(words: list[str]) -> str:
    return "".join(f"\n    {line}" for line in words) or " nothing."
