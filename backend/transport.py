"""HTTP/1.1 to one engine over kept connections: bytes in, status and bytes out, with a deadline.

Does only what calls to an engine need, at a quarter of a general client's cost, which the many
calls of an evaluation make worth having (docs/decisions/engine-transport.md). Knows connections and
nothing of what is said over them. The engine's calls are idempotent, so a connection that turns out
to have been closed while it idled costs one second try on a fresh one; no other failure is ever
tried again.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Coroutine, Mapping
from time import monotonic
from typing import Any, Protocol
from urllib.parse import urlsplit

from backend.connection import ClosedWhileIdle, Connection
from backend.errors import EngineError, EngineTimeout, EngineUnavailable

# shorter than the 5 s after which SGLang closes an idle connection
_KEEP_ALIVE_SECONDS = 3.0
# a call that is over its deadline is found at the next look: cheaper than a timer for each
_LOOK_SECONDS = 0.02
_FORBIDDEN = frozenset("\r\n\0")


class Transport(Protocol):
    """What the client needs of HTTP; every method raises only `backend.errors`.

    Deadlines are readings of the running loop's clock, in seconds.
    """

    async def get(self, path: str, *, deadline: float) -> tuple[int, bytes]:
        """Fetch `path`; return status and body."""
        ...

    async def post(
        self, path: str, body: bytes, *, deadline: float, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Post JSON to `path`; return status and body. Cancelling closes the connection."""
        ...

    async def aclose(self) -> None:
        """Close every connection; later calls fail."""
        ...


class ConnectionPool:
    """Connections to `base_url`, made when they are needed; belongs to the loop that uses it."""

    def __init__(self, base_url: str, *, api_key: str | None = None) -> None:
        address = urlsplit(base_url)
        secure = address.scheme == "https"
        self._host = address.hostname or ""
        self._port = address.port or (443 if secure else 80)
        self._ssl = ssl.create_default_context() if secure else None
        self._path = address.path.rstrip("/")
        common = {"Host": address.netloc, "Content-Type": "application/json"}
        if api_key is not None:
            common["Authorization"] = f"Bearer {api_key}"
        self._common = _header_lines(common)
        self._idle: deque[Connection] = deque()
        self._busy: dict[Connection, float] = {}  # and the deadline
        self._look: asyncio.TimerHandle | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    def get(self, path: str, *, deadline: float) -> Coroutine[Any, Any, tuple[int, bytes]]:
        """Fetch `path`; return status and body."""
        return self._send(self._head("GET", path, {}) + b"\r\n", deadline)

    def post(
        self, path: str, body: bytes, *, deadline: float, headers: Mapping[str, str] | None = None
    ) -> Coroutine[Any, Any, tuple[int, bytes]]:
        """Post JSON to `path`; return status and body. Cancelling closes the connection."""
        head = self._head("POST", path, headers or {})
        message = b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
        return self._send(message, deadline)

    async def aclose(self) -> None:
        """Close every connection; later calls fail."""
        self._closed = True
        for timer in (self._look, self._sweep):
            if timer is not None:
                timer.cancel()
        connections = [*self._idle, *self._busy]
        self._idle.clear()
        for connection in connections:
            connection.close()
        if connections:
            await asyncio.wait([connection.lost for connection in connections], timeout=1.0)

    def _head(self, method: str, path: str, headers: Mapping[str, str]) -> bytes:
        first = f"{method} {self._path}{path} HTTP/1.1\r\n"
        return f"{first}{self._common}{_header_lines(headers)}".encode()

    async def _send(self, message: bytes, deadline: float) -> tuple[int, bytes]:
        connection = self._kept()
        while True:
            connection = connection or await self._connect(deadline)
            self._busy[connection] = deadline
            if self._look is None:
                self._look_later()
            try:
                answer = await connection.begin(message)
            finally:
                self._release(connection)
            if isinstance(answer, ClosedWhileIdle):  # as no fresh one is
                connection = None
            elif isinstance(answer, EngineError):
                raise answer
            else:
                return answer

    def _release(self, connection: Connection) -> None:
        connection.end()
        del self._busy[connection]
        if connection.is_reusable and not self._closed:
            self._keep(connection)
        else:
            connection.close()

    def _look_later(self) -> None:
        self._look = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._fail_late)

    def _fail_late(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection, deadline in self._busy.items():
            if deadline <= now:
                connection.fail(EngineTimeout())
        self._look = None
        if self._busy:
            self._look_later()

    async def _connect(self, deadline: float) -> Connection:
        self._require_open()
        try:
            async with asyncio.timeout_at(deadline):
                _, connection = await asyncio.get_running_loop().create_connection(
                    Connection, self._host, self._port, ssl=self._ssl
                )
        except TimeoutError:
            raise EngineTimeout() from None
        except ssl.SSLError:
            raise EngineUnavailable(
                "No encrypted connection to the engine can be made: its certificate is not "
                "trusted here, or it does not speak TLS."
            ) from None
        except OSError:  # refused, unreachable, no such name
            raise EngineUnavailable("The engine cannot be reached.") from None
        if self._closed:  # meanwhile: nobody looks at the deadline any more
            connection.close()
        self._require_open()
        return connection

    def _require_open(self) -> None:
        if self._closed:
            raise EngineUnavailable("The connection to the engine has been closed.")

    def _kept(self) -> Connection | None:
        now = monotonic()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and now - connection.idle_since < _KEEP_ALIVE_SECONDS:
                return connection
            connection.close()
        return None

    def _keep(self, connection: Connection) -> None:
        connection.idle_since = monotonic()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep_in(_KEEP_ALIVE_SECONDS)

    def _close_idle(self) -> None:
        now = monotonic()
        while self._idle and now - self._idle[0].idle_since >= _KEEP_ALIVE_SECONDS:
            self._idle.popleft().close()
        self._sweep = None
        if self._idle:
            self._sweep_in(self._idle[0].idle_since + _KEEP_ALIVE_SECONDS - now)

    def _sweep_in(self, seconds: float) -> None:
        self._sweep = asyncio.get_running_loop().call_later(seconds, self._close_idle)


def _header_lines(headers: Mapping[str, str]) -> str:
    lines = ""
    for name, value in headers.items():
        if not _FORBIDDEN.isdisjoint(value):
            raise ValueError("A header's value holds a line break.")
        lines += f"{name}: {value}\r\n"
    return lines
