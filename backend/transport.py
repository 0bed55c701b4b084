"""HTTP/1.1 to one engine over kept connections: bytes in, status and bytes out, with a deadline.

Does only what calls to an engine need, at a fraction of a general client's cost, which the many
calls of an evaluation make worth having (docs/decisions/engine-transport.md). Knows connections and
nothing of what is said over them. The engine's calls are idempotent, so a connection that turns out
to have been closed while it idled costs one second try on a fresh one; no other failure is ever
tried again.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import Protocol
from urllib.parse import urlsplit

from backend.connection import Answer, ClosedWhileIdle, Connection
from backend.errors import EngineError, EngineTimeout, EngineUnavailable

# shorter than the 5 s after which SGLang closes an idle connection
_KEEP_ALIVE_SECONDS = 3.0
# a call that is over its deadline is found at the next look: cheaper than a timer for each
_LOOK_SECONDS = 0.02
_FORBIDDEN = frozenset("\r\n\0")


class Exchange(Protocol):
    """A request under way."""

    def cancel(self) -> None:
        """Close its connection and tell nobody of an answer; nothing if there has been one."""


class Transport(Protocol):
    """What the client needs of HTTP.

    Every failure that the engine or the network can cause is one of `backend.errors`; any other is
    a mistake of ours, and handed on so that nobody waits in vain. Deadlines are readings of the
    running loop's clock, in seconds.
    """

    def begin_post(
        self,
        path: str,
        body: bytes,
        tell: Callable[[Answer], object],
        *,
        deadline: float,
        headers: Mapping[str, str],
    ) -> Exchange:
        """Post JSON to `path` without waiting.

        Args:
            path: below the engine's address.
            body: JSON.
            tell: called at most once with what came of it, from the loop and never before this
                method has returned: the caller has to know the exchange first. Must not raise.
            deadline: of everything, connecting included; past it `tell` gets an `EngineTimeout`.
            headers: beside those of every call.

        Returns:
            The exchange; once it is cancelled, `tell` is not called.

        Raises:
            ValueError: a header's value holds a line break.
        """
        ...

    async def post(
        self, path: str, body: bytes, *, deadline: float, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Post JSON to `path`; return status and body. Cancelling closes the connection."""
        ...

    async def get(self, path: str, *, deadline: float) -> tuple[int, bytes]:
        """Fetch `path`; return status and body."""
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
        self._under_way: set[_Exchange] = set()
        self._look: asyncio.TimerHandle | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    def begin_post(
        self,
        path: str,
        body: bytes,
        tell: Callable[[Answer], object],
        *,
        deadline: float,
        headers: Mapping[str, str],
    ) -> Exchange:
        """Post JSON to `path` without waiting; `tell` is called later, with what came of it."""
        return self._begin(self._post(path, body, headers), tell, deadline)

    async def post(
        self, path: str, body: bytes, *, deadline: float, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Post JSON to `path`; return status and body. Cancelling closes the connection."""
        return await self._exchange(self._post(path, body, headers or {}), deadline)

    async def get(self, path: str, *, deadline: float) -> tuple[int, bytes]:
        """Fetch `path`; return status and body."""
        return await self._exchange(self._head("GET", path, {}) + b"\r\n", deadline)

    async def aclose(self) -> None:
        """Close every connection; later calls fail."""
        self._closed = True
        for timer in (self._look, self._sweep):
            if timer is not None:
                timer.cancel()
        connections = [*self._idle, *(one.connection for one in self._under_way if one.connection)]
        self._idle.clear()  # first: whoever is told may begin another, which must find none
        for exchange in [*self._under_way]:
            exchange.fail(_closed())
        for connection in connections:
            connection.close()
        if connections:
            await asyncio.wait([connection.lost for connection in connections], timeout=1.0)

    async def connect(self, deadline: float) -> Connection:
        """Make a connection.

        Raises:
            EngineError: it cannot be made, or not in time.
        """
        if self._closed:
            raise _closed()
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
        return connection

    def keep(self, connection: Connection) -> None:
        """Take back a connection that is no longer used, for the next exchange if it is fit."""
        if self._closed or not connection.is_reusable:
            connection.close()
            return
        connection.idle_since = monotonic()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep_in(_KEEP_ALIVE_SECONDS)

    def forget(self, exchange: "_Exchange") -> None:
        """Look after an exchange no longer: it is over."""
        self._under_way.discard(exchange)

    def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        head = self._head("POST", path, headers)
        return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)

    def _head(self, method: str, path: str, headers: Mapping[str, str]) -> bytes:
        first = f"{method} {self._path}{path} HTTP/1.1\r\n"
        return f"{first}{self._common}{_header_lines(headers)}".encode()

    def _begin(
        self, message: bytes, tell: Callable[[Answer], object], deadline: float
    ) -> "_Exchange":
        exchange = _Exchange(self, message, tell, deadline)
        self._under_way.add(exchange)
        if self._look is None:
            self._look_later()
        exchange.begin(self._kept())
        return exchange

    async def _exchange(self, message: bytes, deadline: float) -> tuple[int, bytes]:
        told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def tell(answer: Answer) -> None:
            if not told.done():  # whoever waited may have been cancelled this very moment
                told.set_result(answer)

        exchange = self._begin(message, tell, deadline)
        try:
            answer = await told
        finally:
            exchange.cancel()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _look_later(self) -> None:
        self._look = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._fail_late)

    def _fail_late(self) -> None:
        self._look = None
        if self._under_way:
            self._look_later()
        now = asyncio.get_running_loop().time()
        for exchange in [one for one in self._under_way if one.deadline <= now]:
            exchange.fail(EngineTimeout())

    def _kept(self) -> Connection | None:
        now = monotonic()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and now - connection.idle_since < _KEEP_ALIVE_SECONDS:
                return connection
            connection.close()
        return None

    def _close_idle(self) -> None:
        now = monotonic()
        while self._idle and now - self._idle[0].idle_since >= _KEEP_ALIVE_SECONDS:
            self._idle.popleft().close()
        self._sweep = None
        if self._idle:
            self._sweep_in(self._idle[0].idle_since + _KEEP_ALIVE_SECONDS - now)

    def _sweep_in(self, seconds: float) -> None:
        self._sweep = asyncio.get_running_loop().call_later(seconds, self._close_idle)


class _Exchange:
    """A request and the connection it has at the time; over when `tell` is called, or cancelled."""

    __slots__ = ("_connecting", "_message", "_pool", "_tell", "connection", "deadline")

    def __init__(
        self,
        pool: ConnectionPool,
        message: bytes,
        tell: Callable[[Answer], object],
        deadline: float,
    ) -> None:
        self.connection: Connection | None = None
        self.deadline = deadline
        self._pool = pool
        self._message = message
        self._tell = tell
        self._connecting: asyncio.Task[None] | None = None

    def begin(self, kept: Connection | None) -> None:
        """Send the request over a kept connection, or else over a fresh one."""
        if kept is None:
            self._connecting = asyncio.create_task(self._connect())
        else:
            self._send(kept)

    def fail(self, error: EngineError) -> None:
        """End it with an error."""
        self.cancel()
        self._tell(error)

    def cancel(self) -> None:
        """Close its connection and tell nobody of an answer; nothing if there has been one."""
        self._pool.forget(self)
        if self._connecting is not None:
            self._connecting.cancel()
        if self.connection is not None:
            self.connection.end()
            self.connection = None

    async def _connect(self) -> None:
        try:
            connection = await self._pool.connect(self.deadline)
        except Exception as error:  # whatever it is, somebody waits to hear of it
            self._over(error)
        else:
            self._send(connection)

    def _send(self, connection: Connection) -> None:
        self.connection = connection
        connection.begin(self._message, partial(self._answered, connection))

    def _answered(self, connection: Connection, answer: Answer) -> None:
        self.connection = None
        self._pool.keep(connection)
        if isinstance(answer, ClosedWhileIdle):  # as no fresh one is: this second try is the last
            self.begin(None)
        else:
            self._over(answer)

    def _over(self, answer: Answer) -> None:
        self._pool.forget(self)
        self._tell(answer)


def _closed() -> EngineUnavailable:
    return EngineUnavailable("The connection to the engine has been closed.")


def _header_lines(headers: Mapping[str, str]) -> str:
    lines = ""
    for name, value in headers.items():
        if not _FORBIDDEN.isdisjoint(value):
            raise ValueError("A header's value holds a line break.")
        lines += f"{name}: {value}\r\n"
    return lines
