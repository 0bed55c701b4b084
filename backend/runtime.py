"""From the engine's start to the last process's end: one coroutine, one exit code.

The API serves from the first moment and says that it is starting. What happens first decides: a
signal ends everything in order, with 0; the engine's death or silence, a start-up that takes too
long, or the certainty that it cannot succeed, with 1. This module knows neither Daphne nor the
engine's protocol.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from backend.config import Config
from backend.engine_log import Phase
from backend.lifespan import Served, StartupRefused
from backend.progress import StartProgress
from backend.supervisor import EngineProcess
from backend.watchers import FAILED, Watched

logger = logging.getLogger(__name__)

CUT_SHORT = 130

CLOSING_SECONDS = 5.0
"""The application bounds its own draining; then it closes what it has open."""

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# calls to a dead engine fail at once, unless the machine is at a standstill
_DEAD_SECONDS = 1.0
_WRITING_SECONDS = 1.0
# SGLang looks every 5 s whether it was asked to end; killed, it leaves shared memory behind
_ENGINE_GRACE_SECONDS = 15.0


class Api(Protocol):
    """The server of the public API; it serves while `run` runs."""

    async def start_accepting(self) -> None:
        """Take connections."""
        ...

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
    lifespan: Served | None,
    url: str,
    config: Config,
    say: Callable[[str], None],
    when_ready: Callable[[], object] = lambda: None,
) -> int:
    """Start everything, wait for what ends it, stop everything.

    Args:
        engine: the engine to start; `None` when one runs elsewhere.
        api: the server of the public API; `None` to run the engine alone.
        lifespan: of the application that `api` serves.
        url: where `api` can be reached, or the engine without one.
        config: how long things may take, and what the engine must serve.
        say: tells the person who started it; one line.
        when_ready: called when the start is over.

    Returns:
        The exit code: 0 after a signal, 1 after a failure, 130 after a second signal.
    """
    signals = _Signals()
    progress = StartProgress(say, Phase.STARTING if engine else Phase.WAITING)
    code = FAILED
    try:
        if lifespan is not None:
            await lifespan.startup()
        if api is not None:
            await api.start_accepting()
        if engine is not None:
            engine.listen(progress.heard)
            await engine.start()
        watched = Watched(engine, lifespan, url, config, progress, say, when_ready)
        code = await first_of([_stop_asked(signals, say), *watched.watchers()])
    except StartupRefused as error:
        logger.error("The API cannot start: %s.", error)
    except OSError as error:
        logger.error("The engine cannot be started: %s.", error.strerror)
    finally:
        drain_seconds = _DEAD_SECONDS if code else config.drain_timeout + CLOSING_SECONDS
        grace = 0 if code else _ENGINE_GRACE_SECONDS
        at_once = await _unless_hurried(
            signals, wind_up(engine, api, lifespan, drain_seconds, grace)
        )
        if at_once and engine is not None:
            await engine.stop(0)
        signals.remove()
    return CUT_SHORT if at_once else code


async def first_of(watchers: list[Coroutine[Any, Any, int]]) -> int:
    """The exit code of the watcher that is done first, of several the one named first."""
    tasks = [asyncio.create_task(watcher) for watcher in watchers]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task.result() for task in tasks if task.done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _stop_asked(signals: _Signals, say: Callable[[str], None]) -> int:
    await signals.stop.wait()
    say("Stopping; a second signal stops at once.")
    return 0


async def wind_up(
    engine: EngineProcess | None,
    api: Api | None,
    lifespan: Served | None,
    drain_seconds: float,
    grace: float,
) -> None:
    """Stop what `run` was given, in order.

    Args:
        engine: ended last; first, where it gets no grace.
        api: takes no more connections from now on.
        lifespan: of the application that `api` serves.
        drain_seconds: how long the application may take to finish.
        grace: seconds the engine may take to end.
    """
    try:
        if api is not None:
            await api.stop_accepting()
        if engine is not None and not grace:  # requests that hang in it fail then, and are answered
            await engine.stop(0)
        if lifespan is not None:
            await lifespan.shutdown(drain_seconds)
        if api is not None:
            await api.finish_answers(_WRITING_SECONDS)
    finally:
        if engine is not None:
            await engine.stop(grace)


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
