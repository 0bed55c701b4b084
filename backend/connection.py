"""One HTTP/1.1 connection to an engine, for one exchange at a time.

Trusts nothing that arrives: an answer is whole and of bounded length, or it is an error. So an
answer without a length, which ends with the connection, counts as broken off: nothing tells such a
whole from a part, no SGLang and no router of its sends it, and HTTP/1.1 lets whatever stands
between send chunks instead. Knows nothing of other connections; how long to wait for an answer, and
when to use a connection again, is `backend.transport`'s business.
"""

import asyncio
from collections.abc import Callable
from typing import TypeAlias, cast

import httptools

from backend.errors import EngineError, EngineProtocolError, EngineUnavailable

_MAX_ANSWER_BYTES = 4 * 2**20

Answer: TypeAlias = tuple[int, bytes] | Exception
"""What comes of a request: status and body, or why there are none."""


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
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tell: Callable[[Answer], None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._whole: tuple[int, bytes] | None = None
        self._taken = 0
        self._is_kept = False
        self.is_reusable = False

    def begin(self, message: bytes, tell: Callable[[Answer], None]) -> None:
        """Send a request.

        Args:
            message: its bytes.
            tell: is called once with what comes of it, never if `end` is called first. There is
                no time limit here: whoever looks at the deadline calls `end`. A kept connection
                that ends without a byte gives `ClosedWhileIdle`.
        """
        self._tell = tell
        self._body.clear()
        self._whole = None
        self._taken = 0
        self.is_reusable = False
        if self.lost.done():
            self._fail(self._gone())
        else:
            self._transport.write(message)

    def end(self) -> None:
        """Expect nothing more of the request that was begun; the connection is of no more use."""
        self._tell = None
        self.close()

    def close(self) -> None:
        """Close it at once; nothing more is sent."""
        self.is_reusable = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take in bytes of an answer; bytes that nobody asked for spoil the connection."""
        if self._tell is None:
            self.close()
            return
        self._taken += len(data)
        if self._taken > _MAX_ANSWER_BYTES:  # headers, chunk sizes and preliminary answers, too
            self._fail(EngineProtocolError("The engine's answer is too large to be one."))
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.is_reusable = False
            self._finish(self._whole or self._broken())
            return
        if self._whole is not None:  # told now: whoever hears of it may begin the next request
            self._finish(self._whole)

    def on_message_begin(self) -> None:
        """Note an answer that nobody asked for."""
        if self._whole is not None:
            self.is_reusable = False

    def on_body(self, body: bytes) -> None:
        """Collect the answer's body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Note that the answer is whole."""
        status = self._parser.get_status_code()
        if status < 200 or self._whole is not None:
            return
        self.is_reusable = self._parser.should_keep_alive()
        self._whole = (status, bytes(self._body))

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        self.lost.set_result(None)
        self._fail(self._gone())

    def _fail(self, error: EngineError) -> None:
        self.is_reusable = False
        self._finish(error)

    def _finish(self, answer: Answer) -> None:
        tell, self._tell = self._tell, None
        if tell is not None:
            self._is_kept = True
            tell(answer)

    def _gone(self) -> EngineError:
        if self._taken:
            return self._broken()
        if self._is_kept:
            return ClosedWhileIdle("The engine closed the connection while it idled.")
        return EngineUnavailable("The engine closed the connection without an answer.")

    @staticmethod
    def _broken() -> EngineError:
        return EngineProtocolError("The engine's answer broke off or is not HTTP.")
