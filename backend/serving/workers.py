"""The processes of an API that has several: started, replaced when they die, stopped together.

To `backend.runtime` they are the server and the application in one. They share the listening
socket, the counters of `share`, and the engine, which is not theirs. Each has a session of its own,
so that a terminal's Ctrl-C reaches only the process that started them; without that process they
end, too. Knows nothing of what they serve.
"""

import asyncio
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from backend.launch import PROJECT_ROOT
from backend.lifespan import StartupRefused
from backend.serving.share import counters_file, counters_in
from backend.serving.worker import READY, REFUSED, STOP
from backend.watchers import FAILED

logger = logging.getLogger(__name__)

MOST_DEATHS = 5
"""Workers that may die within `DEATHS_SECONDS`; with one more, the run ends."""

DEATHS_SECONDS = 60.0

_STOP_LINE = STOP.encode() + b"\n"


class Workers:
    """An asynchronous context, at whose end no worker is left.

    Args:
        number: of them.
        listener: where connections come in.
        application: dotted path of the ASGI application.
        server: one of `servers.SERVERS`.
        environment: the whole of theirs; the settings come from it.
    """

    def __init__(
        self,
        number: int,
        listener: socket.socket,
        *,
        application: str,
        server: str,
        environment: Mapping[str, str],
    ) -> None:
        self._number = number
        self._listener = listener
        self._counters_file = counters_file(number)
        self._counters = counters_in(self._counters_file.fileno())
        self._argv = [sys.executable, "-m", "backend.serving.worker", "--application", application]
        self._argv += ["--server", server, "--listener", str(listener.fileno())]
        self._argv += ["--counters", str(self._counters_file.fileno())]
        path = os.pathsep.join(filter(None, [str(PROJECT_ROOT), environment.get("PYTHONPATH")]))
        self._environment = {**environment, "PYTHONPATH": path}
        self._tasks: list[asyncio.Task[None]] = []
        self._lines: dict[int, asyncio.StreamWriter] = {}
        self._never_ready = set(range(number))
        self._all_ready = asyncio.Event()
        self._refusal: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._deaths = deque[float](maxlen=MOST_DEATHS + 1)
        self._is_stopping = False

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
        self._counters_file.close()

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
            self._tasks.append(asyncio.create_task(self._keep(index, *worker)))

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
        self._is_stopping = True
        self._listener.close()
        for line in self._lines.values():
            line.write(_STOP_LINE)

    async def shutdown(self, seconds: float) -> None:
        """Wait until they have ended, at most `seconds`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def finish_answers(self, seconds: float) -> None:
        """Wait until they have ended, at most `seconds`."""
        await self.shutdown(seconds)

    async def _start(
        self, index: int, *, late: bool
    ) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader]:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._argv,
                    *["--index", str(index)],
                    *(["--late"] if late else []),
                    stdin=theirs.fileno(),
                    env=self._environment,
                    pass_fds=[self._listener.fileno(), self._counters_file.fileno()],
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        reader, line = await asyncio.open_connection(sock=ours)
        self._lines[index] = line
        if self._is_stopping:
            line.write(_STOP_LINE)
        return process, reader

    async def _keep(
        self, index: int, process: asyncio.subprocess.Process, reader: asyncio.StreamReader
    ) -> None:
        """See to it that there is a worker `index`."""
        while True:
            code = await self._follow(index, process, reader)
            self._counters[index] = 0
            if self._is_stopping:
                return
            if code == FAILED:
                self._refuse("A worker of the API failed. It has said why.")
                return
            self._deaths.append(asyncio.get_running_loop().time())
            if code == 0:
                logger.warning("A worker of the API was asked to end, and is replaced.")
            else:
                logger.error("A worker of the API ended by itself (exit code %d).", code)
            if self._too_many_deaths():
                self._refuse(
                    f"Workers of the API ended {MOST_DEATHS + 1} times within {DEATHS_SECONDS:g} "
                    "seconds."
                )
                return
            try:
                process, reader = await self._start(index, late=True)
            except OSError as error:
                self._refuse(f"A worker of the API could not be replaced: {error.strerror}.")
                return

    async def _follow(
        self, index: int, process: asyncio.subprocess.Process, reader: asyncio.StreamReader
    ) -> int:
        """Listen to a worker to its end, which comes with ours; returns its exit code."""
        try:
            with suppress(ConnectionError):
                async for line in reader:
                    self._heard(index, line.decode().rstrip("\n"))
            return await process.wait()
        finally:
            self._lines.pop(index).close()
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _too_many_deaths(self) -> bool:
        deaths = self._deaths
        return len(deaths) > MOST_DEATHS and deaths[-1] - deaths[0] < DEATHS_SECONDS

    def _heard(self, index: int, said: str) -> None:
        if said == READY:
            self._never_ready.discard(index)
            if not self._never_ready:
                self._all_ready.set()
        elif said.startswith(REFUSED):
            self._refuse(said.removeprefix(REFUSED))

    def _refuse(self, reason: str) -> None:
        if not self._refusal.done():
            self._refusal.set_result(reason)
