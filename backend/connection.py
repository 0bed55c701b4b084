"""One HTTP/1.1 connection to an engine, for one exchange at a time.

Trusts nothing that arrives: an answer is whole and of bounded length, or it is an error. So an
answer without a length, which ends with the connection, counts as broken off: nothing tells such a
whole from a part, no SGLang and no router of its sends it, and HTTP/1.1 lets whatever stands
between send chunks instead. Knows nothing of other connections; how long to wait for an answer, and
when to use a connection again, is `backend.transport`'s business.
"""

import asyncio
from typing import cast

import httptools

from backend.errors import EngineError, EngineProtocolError, EngineUnavailable

_MAX_ANSWER_BYTES = 4 * 2**20


class ClosedWhileIdle(EngineError):
    """A kept connection ended before it gave a byte of an answer."""


class Connection(asyncio.Protocol):
    """One connection, for one exchange at a time.

    Attributes:
        idle_since: when the last exchange ended, by `time.monotonic()`, in seconds.
        is_reusable: whether another exchange may follow.
        lost: done when the connection is gone.
    """

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        # failures are results here: an exception that nobody comes to fetch is logged by asyncio
        self._answer: asyncio.Future[tuple[int, bytes] | EngineError] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._taken = 0
        self._begun = False
        self._exchanges = 0
        self.is_reusable = False

    def begin(self, message: bytes) -> asyncio.Future[tuple[int, bytes] | EngineError]:
        """Send a request.

        Returns:
            What comes of it: status and body, or the failure. It has no time limit of its own:
            whoever looks at the deadline ends it with `fail`. Cancelling it makes the connection
            unusable. Of one that had been kept and ended without a byte, `ClosedWhileIdle`.
        """
        self._answer = answer = self._loop.create_future()
        self._body.clear()
        self._taken = 0
        self._begun = self.is_reusable = False
        if self.lost.done():
            self.fail(self._gone())
        else:
            self._transport.write(message)
        return answer

    def end(self) -> None:
        """Expect nothing more of the request that was begun."""
        self._answer = None
        self._exchanges += 1

    def fail(self, error: EngineError) -> None:
        """End the exchange that is under way, if one is, with `error`."""
        self.is_reusable = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(error)

    def close(self) -> None:
        """Close it at once; nothing more is sent."""
        self.is_reusable = False
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
        self._taken += len(data)
        if self._taken > _MAX_ANSWER_BYTES:  # headers, chunk sizes and preliminary answers, too
            self.fail(EngineProtocolError("The engine's answer is too large to be one."))
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.fail(EngineProtocolError("The engine's answer broke off or is not HTTP."))

    def on_message_begin(self) -> None:
        """Note an answer that nobody asked for."""
        if self._answer is None or self._answer.done():
            self.is_reusable = False

    def on_body(self, body: bytes) -> None:
        """Collect the answer's body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Hand the answer over."""
        status = self._parser.get_status_code()
        if status < 200 or self._answer is None or self._answer.done():
            return
        self.is_reusable = self._parser.should_keep_alive()
        self._answer.set_result((status, bytes(self._body)))

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        self.fail(self._gone())
        self.lost.set_result(None)

    def _gone(self) -> EngineError:
        if self._begun:
            return EngineProtocolError("The engine's answer broke off or is not HTTP.")
        if self._exchanges:
            return ClosedWhileIdle("The engine closed the connection while it idled.")
        return EngineUnavailable("The engine closed the connection without an answer.")
