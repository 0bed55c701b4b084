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
from collections.abc import Mapping
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from backend.errors import EngineError, EngineProtocolError, EngineTimeout, EngineUnavailable

# shorter than the 5 s after which SGLang closes an idle connection
_KEEP_ALIVE_SECONDS = 3.0
_MAX_ANSWER_BYTES = 4 * 2**20
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
        self._idle: deque[_Connection] = deque()
        self._busy: set[_Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    async def get(self, path: str, *, deadline: float) -> tuple[int, bytes]:
        """Fetch `path`; return status and body."""
        return await self._send(self._head("GET", path, {}), deadline)

    async def post(
        self, path: str, body: bytes, *, deadline: float, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Post JSON to `path`; return status and body. Cancelling closes the connection."""
        length = {"Content-Length": str(len(body))}
        return await self._send(
            self._head("POST", path, {**(headers or {}), **length}) + body, deadline
        )

    async def aclose(self) -> None:
        """Close every connection; later calls fail."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        connections = [*self._idle, *self._busy]
        self._idle.clear()
        for connection in connections:
            connection.close()
        if connections:
            await asyncio.wait([connection.lost for connection in connections], timeout=1.0)

    def _head(self, method: str, path: str, headers: Mapping[str, str]) -> bytes:
        first = f"{method} {self._path}{path} HTTP/1.1\r\n".encode()
        return b"".join((first, self._common, _header_lines(headers), b"\r\n"))

    async def _send(self, message: bytes, deadline: float) -> tuple[int, bytes]:
        connection = self._kept()
        if connection is not None:
            try:
                return await self._exchange(connection, message, deadline)
            except _ClosedWhileIdle:
                pass
        return await self._exchange(await self._connect(deadline), message, deadline)

    async def _exchange(
        self, connection: "_Connection", message: bytes, deadline: float
    ) -> tuple[int, bytes]:
        self._busy.add(connection)
        try:
            answer = await connection.exchange(message, deadline)
        finally:
            self._busy.discard(connection)
            if connection.is_reusable and not self._closed:
                self._keep(connection)
            else:
                connection.close()
        return answer

    async def _connect(self, deadline: float) -> "_Connection":
        if self._closed:
            raise EngineUnavailable("The connection to the engine has been closed.")
        try:
            async with asyncio.timeout_at(deadline):
                _, connection = await asyncio.get_running_loop().create_connection(
                    _Connection, self._host, self._port, ssl=self._ssl
                )
        except TimeoutError:
            raise _timeout() from None
        except OSError:  # refused, unreachable, no such name, no trust in a certificate
            raise EngineUnavailable("The engine cannot be reached.") from None
        return connection

    def _kept(self) -> "_Connection | None":
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and now - connection.idle_since < _KEEP_ALIVE_SECONDS:
                return connection
            connection.close()
        return None

    def _keep(self, connection: "_Connection") -> None:
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(_KEEP_ALIVE_SECONDS, self._close_idle)

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - _KEEP_ALIVE_SECONDS
        while self._idle and self._idle[0].idle_since <= oldest:
            self._idle.popleft().close()
        self._sweep = None
        if self._idle:
            due = self._idle[0].idle_since + _KEEP_ALIVE_SECONDS
            self._sweep = loop.call_at(due, self._close_idle)


class _ClosedWhileIdle(EngineError):
    """A kept connection ended before it gave a byte of an answer."""


class _Connection(asyncio.Protocol):
    """One connection, for one exchange at a time.

    Attributes:
        idle_since: loop time at which the last exchange ended, in seconds.
        lost: done when the connection is gone.
    """

    def __init__(self) -> None:
        self.idle_since = 0.0
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # failures are results here: an exception that nobody comes to fetch is logged by asyncio
        self._answer: asyncio.Future[tuple[int, bytes] | EngineError] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._begun = False
        self._exchanges = 0
        self._is_reusable = False

    @property
    def is_reusable(self) -> bool:
        """Whether another exchange may follow."""
        return self._is_reusable and not self.lost.done()

    async def exchange(self, message: bytes, deadline: float) -> tuple[int, bytes]:
        """Send a request and wait for its answer; cancelling makes the connection unusable.

        Raises:
            _ClosedWhileIdle: it had been kept, and ended without a byte.
            EngineError: any other failure.
        """
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        self._body.clear()
        self._begun = self._is_reusable = False
        late = loop.call_at(deadline, self._fail, _timeout())
        try:
            if self.lost.done():
                self._fail(self._gone())
            else:
                self._transport.write(message)
            answer = await self._answer
            if isinstance(answer, EngineError):
                raise answer
        finally:
            late.cancel()
            self._answer = None
            self._exchanges += 1
        return answer

    def close(self) -> None:
        """Close it at once; nothing more is sent."""
        self._is_reusable = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take in bytes of an answer; bytes that nobody asked for spoil the connection."""
        if self._answer is None:
            self.close()
            return
        self._begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail(EngineProtocolError("The engine's answer broke off or is not HTTP."))

    def on_message_begin(self) -> None:
        """Note an answer that nobody asked for."""
        if self._answer is None or self._answer.done():
            self._is_reusable = False

    def on_body(self, body: bytes) -> None:
        """Collect the answer's body, within bounds."""
        self._body += body
        if len(self._body) > _MAX_ANSWER_BYTES:
            self._fail(EngineProtocolError("The engine's answer is too large to be one."))

    def on_message_complete(self) -> None:
        """Hand the answer over."""
        status = self._parser.get_status_code()
        if status < 200 or self._answer is None or self._answer.done():
            return
        self._is_reusable = self._parser.should_keep_alive()
        self._answer.set_result((status, bytes(self._body)))

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        self._fail(self._gone())
        self.lost.set_result(None)

    def _gone(self) -> EngineError:
        if self._begun:
            return EngineProtocolError("The engine's answer broke off or is not HTTP.")
        if self._exchanges:
            return _ClosedWhileIdle("The engine closed the connection while it idled.")
        return EngineUnavailable("The engine closed the connection without an answer.")

    def _fail(self, error: EngineError) -> None:
        self._is_reusable = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(error)


def _timeout() -> EngineTimeout:
    return EngineTimeout("The engine gave no answer before the deadline.")


def _header_lines(headers: Mapping[str, str]) -> bytes:
    if any(not _FORBIDDEN.isdisjoint(value) for value in headers.values()):
        raise ValueError("A header's value holds a line break.")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
