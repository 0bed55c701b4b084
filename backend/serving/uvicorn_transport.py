"""One write for an answer whose head and body come one after the other.

uvicorn hands the two to its transport apart, each of which is a system call, and a segment to the
client. Here what is written within one turn of the loop leaves together at its end. Knows bytes and
nothing of HTTP.
"""

import asyncio
from contextlib import suppress
from typing import Any


class Gathering:
    """A transport that collects what is written; everything else is the transport's own.

    Args:
        transport: of the connection.
        loop: that serves it.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._written: list[bytes] = []
        self._has_ended = False

    def __getattr__(self, name: str) -> Any:
        """Give what is not done here."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send `data` at the end of this turn of the loop, after what was written before.

        Nothing is sent after the end: uvicorn tells a client to go on with what has been refused.
        """
        if self._has_ended:
            return
        if not self._written:
            self._loop.call_soon(self._flush)
        self._written.append(data)

    def write_eof(self) -> None:
        """Send what was written, and nothing more."""
        self._flush()
        self._has_ended = True
        with suppress(OSError):  # the client has left, which nobody has read yet
            self._transport.write_eof()

    def close(self) -> None:
        """Send what was written, then end the connection."""
        self._flush()
        self._transport.close()

    def get_write_buffer_size(self) -> int:
        """How many bytes are not on the wire yet."""
        return sum(map(len, self._written)) + self._transport.get_write_buffer_size()

    def _flush(self) -> None:
        written, self._written = self._written, []
        if written and not self._transport.is_closing():
            self._transport.write(b"".join(written))
