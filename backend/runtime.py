"""From the engine's start to the last process's end: one coroutine, one exit code.

The API serves from the first moment and says that it is starting. What happens first decides: a
signal ends everything in order, with 0; the engine's death, or a start-up that takes too long,
with 1. This module knows neither Daphne nor the engine's protocol.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from backend.health import wait_until_healthy
from backend.lifespan import Lifespan, StartupRefused
from backend.supervisor import EngineProcess

logger = logging.getLogger(__name__)

FAILED = 1
CUT_SHORT = 130

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# the application bounds its own draining; this is for one that does not
_DRAIN_SECONDS = 60.0
# calls to a dead engine fail at once, so their answers need only be written
_DRAIN_DEAD_SECONDS = 1.0
_ENGINE_GRACE_SECONDS = 10.0


class Api(Protocol):
    """The server of the public API; it serves while `run` runs."""

    async def stop_accepting(self) -> None:
        """Take no new connections."""
        ...

    async def finish_answers(self, seconds: float) -> None:
        """Wait until all answers are on the wire, at most `seconds`."""
        ...


class _Signals:
    """The first signal asks to stop, the second to stop at once."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.at_once = asyncio.Event()
        # nohup ignores the hang-up on behalf of what it starts
        self._numbers = [n for n in _STOP_SIGNALS if not _is_hang_up_ignored(n)]
        loop = asyncio.get_running_loop()
        for number in self._numbers:
            loop.add_signal_handler(number, self._received)

    def _received(self) -> None:
        (self.at_once if self.stop.is_set() else self.stop).set()

    def remove(self) -> None:
        loop = asyncio.get_running_loop()
        for number in self._numbers:
            loop.remove_signal_handler(number)


def _is_hang_up_ignored(number: signal.Signals) -> bool:
    return number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


async def run(
    *,
    engine: EngineProcess | None,
    api: Api | None,
    lifespan: Lifespan | None,
    probe_url: str,
    startup_timeout: float,
    say: Callable[[str], None],
) -> int:
    """Start everything, wait for what ends it, stop everything.

    Args:
        engine: the engine to start; `None` when one runs elsewhere.
        api: the server of the public API; `None` to run the engine alone.
        lifespan: of the application that `api` serves.
        probe_url: whose `/health` says that all is ready.
        startup_timeout: seconds until that must be so.
        say: tells the person who started it; one line.

    Returns:
        The exit code: 0 after a signal, 1 after a failure, 130 after a second signal.
    """
    signals = _Signals()
    code = FAILED
    try:
        if lifespan is not None:
            await lifespan.startup()
        if engine is not None:
            await engine.start()
        code = await _until_something_ends(engine, signals, probe_url, startup_timeout, say)
    except StartupRefused as error:
        logger.error("The API cannot start: %s.", error)
    except OSError as error:
        logger.error("The engine cannot be started: %s.", error.strerror)
    finally:
        seconds = _DRAIN_SECONDS if code == 0 else _DRAIN_DEAD_SECONDS
        at_once = await _unless_hurried(signals, _drain(api, lifespan, seconds))
        if engine is not None:
            if not (at_once or code):
                at_once = await _unless_hurried(signals, engine.stop(_ENGINE_GRACE_SECONDS))
            if at_once or code:
                await engine.stop(0)
        signals.remove()
    return CUT_SHORT if at_once else code


async def _until_something_ends(
    engine: EngineProcess | None,
    signals: _Signals,
    probe_url: str,
    startup_timeout: float,
    say: Callable[[str], None],
) -> int:
    began = asyncio.get_running_loop().time()
    stopped = asyncio.create_task(signals.stop.wait())
    ready = asyncio.create_task(wait_until_healthy(probe_url, seconds=startup_timeout))
    ended = asyncio.create_task(engine.wait() if engine else asyncio.Event().wait())
    pending: set[asyncio.Task[bool] | asyncio.Task[int]] = {stopped, ready, ended}
    try:
        while True:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                say("Stopping; a second signal stops at once.")
                return 0
            if engine is not None and ended.done():
                await _report_death(engine, ended.result())
                return FAILED
            if not ready.result():
                logger.error(
                    "Not ready within %g seconds (OPENJEV_STARTUP_TIMEOUT); giving up.",
                    startup_timeout,
                )
                return FAILED
            seconds = asyncio.get_running_loop().time() - began
            say(f"Ready in {seconds:.1f} s at {probe_url}. Ctrl-C stops it.")
    finally:
        for task in (stopped, ready, ended):
            task.cancel()
        await asyncio.gather(stopped, ready, ended, return_exceptions=True)


async def _report_death(engine: EngineProcess, code: int) -> None:
    words = await engine.last_words()
    said = "".join(f"\n    {line}" for line in words) or " nothing."
    logger.error("The engine ended by itself (exit code %d). The last it said:%s", code, said)


async def _drain(api: Api | None, lifespan: Lifespan | None, seconds: float) -> None:
    if api is not None:
        await api.stop_accepting()
    if lifespan is not None:
        await lifespan.shutdown(seconds)
    if api is not None:
        await api.finish_answers(min(seconds, 1.0))


async def _unless_hurried(signals: _Signals, work: Coroutine[Any, Any, None]) -> bool:
    """Do `work`, but no longer than until the second signal; tell whether it was cut short."""
    working = asyncio.create_task(work)
    hurried = asyncio.create_task(signals.at_once.wait())
    await asyncio.wait([working, hurried], return_when=asyncio.FIRST_COMPLETED)
    cut_short = hurried.done()
    hurried.cancel()
    working.cancel()
    (failure, _) = await asyncio.gather(working, hurried, return_exceptions=True)
    if isinstance(failure, Exception):
        logger.error("Stopping failed.", exc_info=failure)
    return cut_short
