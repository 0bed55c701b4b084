"""The processes of an API that has several: started, replaced when they die, stopped together.

To `backend.runtime` they are the server and the application in one. They share the listening
socket, the counters of `share`, and the engine, which is not theirs. One whose loop hangs is
killed, and counts as dead. Each has a session of its own, so that a terminal's Ctrl-C reaches only
the process that started them; without that process they end, too. Knows nothing of what they serve.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from backend.config import Config
from backend.launch import PROJECT_ROOT, LaunchError
from backend.lifespan import StartupRefused
from backend.serving.heartbeat import pause_for, wait_for_silence
from backend.serving.share import counters_file, counters_in
from backend.serving.worker import LEAVING, READY, REFUSED, SHOW_THREADS, STOP
from backend.watchers import FAILED

logger = logging.getLogger(__name__)

MOST_DEATHS = 5
"""Workers that may die within `DEATHS_SECONDS`; with one more, the run ends."""

DEATHS_SECONDS = 60.0

REPLACEMENT_SECONDS = 10.0
"""A worker that was asked to end has no successor before so long after its own start: whoever asks
may do it again and again, which is no reason to end the run, nor to do nothing but start."""

_STOP_LINE = STOP.encode() + b"\n"
_SHOWING_SECONDS = 0.5  # to write where each thread is


@dataclass(slots=True)
class _Worker:
    """A process, and what is known of it.

    Attributes:
        index: which of the API's it is.
        process: it.
        heard: what it says.
        told: what it is told.
        started_at: reading of the loop's clock.
        is_ready: it has been, once.
        is_leaving: because it was asked to.
        is_hanging: it is killed for that.
    """

    index: int
    process: asyncio.subprocess.Process
    heard: asyncio.StreamReader
    told: asyncio.StreamWriter
    started_at: float
    is_ready: bool = False
    is_leaving: bool = False
    is_hanging: bool = False


class Workers:
    """An asynchronous context, at whose end no worker is left.

    Args:
        number: of them.
        listener: where connections come in.
        application: dotted path of the ASGI application.
        server: one of `servers.SERVERS`.
        environment: the whole of theirs; the settings come from it.
        config: these settings: how long a worker may be silent.

    Raises:
        LaunchError: there is no place for what they share.
    """

    def __init__(
        self,
        number: int,
        listener: socket.socket,
        *,
        application: str,
        server: str,
        environment: Mapping[str, str],
        config: Config,
    ) -> None:
        self._number = number
        self._listener = listener
        self._config = config
        try:
            self._file = counters_file(number)
        except OSError as error:
            raise LaunchError(
                f"What the workers share has no place in a temporary directory ({error.strerror}). "
                "Make room in it, name another with TMPDIR, or leave --workers out."
            ) from None
        self._counters = counters_in(self._file.fileno())
        # -P: what lies where the command was started may be named as our packages are
        self._argv = [sys.executable, "-P", "-m", "backend.serving.worker"]
        self._argv += ["--application", application, "--server", server]
        self._argv += ["--listener", str(listener.fileno())]
        self._argv += ["--counters", str(self._file.fileno())]
        path = os.pathsep.join(filter(None, [str(PROJECT_ROOT), environment.get("PYTHONPATH")]))
        self._environment = {**environment, "PYTHONPATH": path}
        self._tasks: list[asyncio.Task[None]] = []
        self._workers: dict[int, _Worker] = {}
        self._never_ready = set(range(number))
        self._all_ready = asyncio.Event()
        self._refusal: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._deaths = deque[float](maxlen=MOST_DEATHS + 1)
        self._stopping = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Start nothing yet."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Kill what has not ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in list(self._workers.values()):  # those whose task had not begun
            await self._end(worker)
        self._file.close()

    async def startup(self) -> None:
        """Start them all.

        Raises:
            StartupRefused: the first could not be started.
        """
        for index in range(self._number):
            try:
                worker = await self._start(index, late=False)
            except OSError as error:
                raise StartupRefused(f"a worker could not be started: {error.strerror}") from None
            self._tasks.append(asyncio.create_task(self._keep(worker)))

    async def ready(self) -> None:
        """Wait until each has said that it is ready."""
        await self._all_ready.wait()

    async def refused(self) -> str:
        """Wait until it is certain that they can never work.

        Returns:
            The reason.
        """
        return await asyncio.shield(self._refusal)

    async def start_accepting(self) -> None:
        """Do nothing: they do so by themselves."""

    async def stop_accepting(self) -> None:
        """Tell them to take no new connections, to answer what they have, and to end."""
        self._stopping.set()
        self._listener.close()
        for worker in self._workers.values():
            worker.told.write(_STOP_LINE)

    async def shutdown(self, seconds: float) -> None:
        """Wait until they have ended, at most `seconds`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def finish_answers(self, seconds: float) -> None:
        """Wait until they have ended, at most `seconds`."""
        await self.shutdown(seconds)

    async def _start(self, index: int, *, late: bool) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._argv,
                    *["--index", str(index)],
                    *(["--late"] if late else []),
                    stdin=theirs.fileno(),
                    env=self._environment,
                    pass_fds=[self._listener.fileno(), self._file.fileno()],
                    start_new_session=True,
                )
            except BaseException:  # also where this is cancelled
                ours.close()
                raise
        try:
            heard, told = await asyncio.open_connection(sock=ours)
        except BaseException:  # also where this is cancelled: nobody would end it
            ours.close()
            process.kill()
            await process.wait()
            raise
        now = asyncio.get_running_loop().time()
        worker = self._workers[index] = _Worker(index, process, heard, told, started_at=now)
        if self._stopping.is_set():
            told.write(_STOP_LINE)
        return worker

    async def _keep(self, worker: _Worker) -> None:
        """See to it that there is a worker in this one's place."""
        while True:
            code = await self._follow(worker)
            self._counters.running[worker.index] = 0
            if not self._stopping.is_set():
                await self._take_note(worker, code)
            if self._stopping.is_set() or self._refusal.done():
                return
            try:
                # while none is ready, somebody has to say so to those who ask
                late = len(self._never_ready) < self._number
                worker = await self._start(worker.index, late=late)
            except OSError as error:
                self._refuse(f"A worker of the API could not be replaced: {error.strerror}.")
                return

    async def _follow(self, worker: _Worker) -> int:
        """Listen to a worker to its end, which comes with ours; returns its exit code."""
        watching = asyncio.create_task(self._end_if_it_hangs(worker))
        try:
            with suppress(ConnectionError):
                async for line in worker.heard:
                    self._hear(worker, line.decode().rstrip("\n"))
            return await worker.process.wait()
        finally:
            watching.cancel()
            await self._end(worker)

    async def _end(self, worker: _Worker) -> None:
        """Leave nothing of a worker, whether it has ended or not."""
        self._workers.pop(worker.index).told.close()
        with suppress(ProcessLookupError):
            worker.process.kill()
        await worker.process.wait()

    async def _end_if_it_hangs(self, worker: _Worker) -> None:
        """Wait until it has been silent for too long, have it show where it is, and kill it.

        Before it is ready much may hold its loop up, and a start has its own time.
        """

        def limit() -> float:
            return self._config.hang_timeout if worker.is_ready else self._config.startup_timeout

        pause = pause_for(self._config.hang_timeout)
        await wait_for_silence(self._counters.beats, worker.index, pause, limit)
        worker.is_hanging = True
        logger.error(
            "A worker of the API (process %d) has not moved for %g seconds (%s) and is killed.",
            worker.process.pid,
            limit(),
            "OPENJEV_HANG_TIMEOUT" if worker.is_ready else "OPENJEV_STARTUP_TIMEOUT",
        )
        with suppress(ProcessLookupError):
            worker.process.send_signal(SHOW_THREADS)
            await asyncio.sleep(_SHOWING_SECONDS)
            worker.process.kill()

    async def _take_note(self, worker: _Worker, code: int) -> None:
        """Tell of an end, and decide what it means."""
        pid = worker.process.pid
        if code == FAILED and worker.index in self._never_ready:
            self._refuse("A worker of the API failed. It has said why.")
        elif (code == 0 and worker.is_leaving) or code == -signal.SIGTERM:
            logger.warning(
                "A worker of the API (process %d) was asked to end, and is replaced.", pid
            )
            await self._pause(worker.started_at + REPLACEMENT_SECONDS)
        else:
            if not worker.is_hanging:
                logger.error(
                    "A worker of the API (process %d) ended by itself (exit code %d).", pid, code
                )
            self._deaths.append(asyncio.get_running_loop().time())
            if self._too_many_deaths():
                self._refuse(
                    f"Workers of the API ended {MOST_DEATHS + 1} times within {DEATHS_SECONDS:g} "
                    "seconds."
                )

    async def _pause(self, until: float) -> None:
        """Wait for a reading of the loop's clock, or until all are to end."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._stopping.wait()

    def _too_many_deaths(self) -> bool:
        deaths = self._deaths
        return len(deaths) > MOST_DEATHS and deaths[-1] - deaths[0] < DEATHS_SECONDS

    def _hear(self, worker: _Worker, said: str) -> None:
        if said == READY:
            worker.is_ready = True
            self._never_ready.discard(worker.index)
            if not self._never_ready:
                self._all_ready.set()
        elif said == LEAVING:
            worker.is_leaving = True
        elif said.startswith(REFUSED) and worker.index in self._never_ready:
            # a later one waits for the engine that the others still work with, or wait for
            self._refuse(said.removeprefix(REFUSED))

    def _refuse(self, reason: str) -> None:
        if not self._refusal.done():
            self._refusal.set_result(reason)
