"""One engine process: start it, relay what it says, notice its end, end all of it.

Knows processes and nothing of HTTP or readiness. The engine runs in a session of its own, so a
terminal's Ctrl-C reaches only us. It is asked to end through its main process alone, which takes
its workers down in its own order; what is left is killed as a group.
"""

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from backend.engine_log import read_line

logger = logging.getLogger("openjev.engine")

MAX_LINE = 2000
_LAST_LINES = 20  # a traceback of a worker, and what its main process says of it
_KEEPER = Path(__file__).with_name("keeper.py")
_LINE_BREAK = re.compile(rb"[\r\n]+")
# how long output written just before the end may take to arrive
_LAST_OUTPUT_SECONDS = 0.3
_KILLED_SECONDS = 5.0


class EngineProcess:
    """A command under supervision; not started until `start`.

    Args:
        argv: the command.
        environment: its whole environment.
        cwd: its working directory.
        secrets: texts that are replaced by `***` in what it says.
        private: files that are removed when it ends, or we do, by whatever signal.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: Path,
        secrets: Sequence[str] = (),
        private: Sequence[Path] = (),
    ) -> None:
        removed = [word for file in private for word in ("--remove", str(file))]
        self._argv = [sys.executable, "-P", str(_KEEPER), *removed, *argv]
        self._environment = dict(environment)
        self._cwd = cwd
        self._last = deque[str](maxlen=_LAST_LINES)
        self._relay = LineRelay(self._heard, secrets)
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: asyncio.ReadTransport | None = None
        self._exited: asyncio.Future[int] | None = None
        self._is_ending = False
        self._is_stopped = False
        self._listener: Callable[[str], None] = lambda text: None

    @property
    def group(self) -> int | None:
        """Process group of the engine; `None` before the start."""
        return self._process.pid if self._process else None

    def listen(self, listener: Callable[[str], None]) -> None:
        """Hand the text of every line to `listener`, too."""
        self._listener = listener

    async def start(self) -> None:
        """Start the command and begin to relay its output.

        Raises:
            OSError: no process could be started.
        """
        loop = asyncio.get_running_loop()
        self._exited = loop.create_future()
        self._process = subprocess.Popen(  # noqa: S603, ASYNC220 - our own command, at start-up
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment,
            cwd=self._cwd,
            start_new_session=True,
        )
        # A thread, because asyncio's own wait() hangs for as long as a grandchild holds the
        # output pipe (CPython gh-119710).
        threading.Thread(
            target=self._await_exit, args=(loop, self._process, self._exited), daemon=True
        ).start()
        self._pipe, _ = await loop.connect_read_pipe(lambda: self._relay, self._process.stdout)

    async def wait(self) -> int:
        """Wait for the command's end.

        Returns:
            Its exit code; 128 + N, or -N, when signal N ended it.
        """
        if self._exited is None:
            raise RuntimeError("The engine has not been started.")
        return await asyncio.shield(self._exited)

    async def last_words(self) -> list[str]:
        """The last lines the engine wrote, after a moment for those still on their way."""
        await asyncio.wait([self._relay.closed], timeout=_LAST_OUTPUT_SECONDS)
        return list(self._last)

    async def stop(self, grace: float) -> None:
        """End the command and its whole process group; does nothing when it has not been started.

        Args:
            grace: seconds between SIGTERM to the command, which SGLang's workers must not get
                (their end is a crash to it), and SIGKILL to the group; 0 kills at once.
        """
        if self._process is None or self._exited is None or self._is_stopped:
            return
        self._is_ending = True
        if grace > 0 and not self._exited.done():
            self._process.send_signal(signal.SIGTERM)
            await asyncio.wait([self._exited], timeout=grace)
        # also when the leader has gone: its children may not have
        _kill_group(self._process.pid)
        await asyncio.wait([self._exited], timeout=_KILLED_SECONDS)
        if self._pipe is not None:
            self._pipe.close()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        self._is_stopped = True

    def _heard(self, line: str) -> None:
        level, text = read_line(line)
        if self._is_ending:
            level = logging.DEBUG  # SGLang's ordinary end prints tracebacks
        self._last.append(text)
        logger.log(level, "%s", text)
        self._listener(text)

    @staticmethod
    def _await_exit(
        loop: asyncio.AbstractEventLoop,
        process: subprocess.Popen[bytes],
        exited: asyncio.Future[int],
    ) -> None:
        code = process.wait()
        _kill_group(process.pid)
        with suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(exited.set_result, code)


class LineRelay(asyncio.Protocol):
    """Cuts a stream into lines, hides secrets in them and hands them on.

    Args:
        emit: takes each line that is not blank, at most `MAX_LINE` characters and an ellipsis.
        secrets: texts to hide.

    Attributes:
        closed: done when the stream has ended.
    """

    def __init__(self, emit: Callable[[str], None], secrets: Sequence[str] = ()) -> None:
        self._emit = emit
        self._secrets = [secret for secret in secrets if secret]
        self._longest = max(map(len, self._secrets), default=0)
        self._keep = 4 * MAX_LINE + self._longest
        self._pending = b""

    @property
    def closed(self) -> asyncio.Future[None]:
        """Done when the stream has ended."""
        return self._closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        """Hand on the lines that are complete; keep a bounded part of the one that is not."""
        *lines, rest = _LINE_BREAK.split(self._pending + data)
        for line in lines:
            self._hand_on(line)
        self._pending = rest[: self._keep]

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand on the last line."""
        self._hand_on(self._pending)
        self._pending = b""
        if not self._closed.done():
            self._closed.set_result(None)

    def _hand_on(self, raw: bytes) -> None:
        line = raw[: self._keep].decode("utf-8", "replace")
        for secret in self._secrets:
            line = line.replace(secret, "***")
        if len(raw) >= self._keep:
            line = line[: len(line) - self._longest]  # what may be the beginning of a secret
        if len(line) > MAX_LINE:
            line = f"{line[:MAX_LINE]}…"
        if line.strip():
            self._emit(line)


def _kill_group(group: int) -> None:
    # PermissionError: how macOS says that only a zombie is left
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
