"""One connection of Daphne's: how long a request may take to arrive, and what becomes of a bad one.

Twisted answers a request that breaks HTTP with a bare status line, and lets one that trickles in
take for ever, because every byte begins its time limit anew. Nothing here knows what a request is
about.
"""

import asyncio
from typing import Any

from daphne.http_protocol import http  # Twisted's module
from daphne.server import Server

from backend.plain_request import refusal

REQUEST_SECONDS = 60.0
"""From a request's first byte to its last."""


class Channel(http.HTTPChannel):  # type: ignore[misc] # Twisted's types fit no subclass
    """Refuses in JSON, with an id, what does not become a request."""

    _late: asyncio.TimerHandle | None = None

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Take in bytes; the first ones of a request begin its time limit."""
        if self._late is None and not self._handlingRequest:
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(REQUEST_SECONDS, self._refuse_late)
        super().dataReceived(data)

    def allContentReceived(self) -> None:  # noqa: N802 - Twisted's name
        """Hand over a request that is complete."""
        self._forget_late()
        super().allContentReceived()

    def headerReceived(self, line: bytes) -> bool:  # noqa: N802 - Twisted's name
        """Take in a header; tell whether it is one."""
        try:
            return bool(super().headerReceived(line))
        except ValueError:  # a length of so many digits that Python does not read it
            self._respondToBadRequestAndDisconnect()
            return False

    def lineLengthExceeded(self, line: bytes) -> None:  # noqa: N802 - Twisted's name
        """Refuse a line that is too long to be kept."""
        self._respondToBadRequestAndDisconnect()

    def connectionLost(self, reason: Any) -> None:  # noqa: N802 - Twisted's name
        """End."""
        self._forget_late()
        super().connectionLost(reason)

    def refuse(self, status: int, reason: str) -> None:
        """Answer what is no request, or not yet, and hang up.

        Args:
            status: the HTTP status.
            reason: what is wrong, in a few words.
        """
        phrase, headers, content = refusal(status, reason)
        lines = [b"HTTP/1.1 %d %s" % (status, phrase)]
        lines += [b"%s: %s" % header for header in [*headers, (b"connection", b"close")]]
        self.transport.write(b"\r\n".join([*lines, b"", content]))
        self.loseConnection()

    def _forget_late(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse_late(self) -> None:
        self.refuse(408, f"not complete after {REQUEST_SECONDS:g} seconds")

    def _respondToBadRequestAndDisconnect(self) -> None:  # noqa: N802 - Twisted's name
        self.refuse(400, "its first line, a header or its length is not valid HTTP")


def use_channels(server: Server) -> None:
    """Let `server`, which has its factories but no connection yet, make channels of this kind."""
    server.http_factory.protocol = Channel
