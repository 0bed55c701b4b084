"""One connection of Daphne's: how long a request may take to arrive, and what becomes of a bad one.

Twisted answers a request that breaks HTTP with a bare status line, and lets one that trickles in
take for ever, because every byte begins its time limit anew. It also closes at once, which a client
that still sends sees as a reset connection instead of the answer. Nothing here knows what a request
is about.
"""

import asyncio
from typing import Any, NoReturn

from daphne.http_protocol import http  # Twisted's module
from daphne.server import Server
from twisted.internet.error import ConnectionDone

from backend.serving.refusals import last_answer

REQUEST_SECONDS = 60.0
"""From a request's first byte to its last."""

LINGER_SECONDS = 10.0
"""How long a refused client may go on sending what is no longer read."""

LINGER_BYTES = 64 * 2**20
"""How much of it."""


class Refused(Exception):
    """What arrives is no request, or none that may go on.

    Attributes:
        status: the HTTP status.
        reason: what is wrong, in a few words and without anything the caller sent.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Channel(http.HTTPChannel):  # type: ignore[misc] # Twisted's types fit no subclass
    """Refuses in JSON, with an id, what does not become a request."""

    _late: asyncio.TimerHandle | None = None
    _refused = False
    _discarded = 0

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Take in bytes; the first ones of a request begin its time limit."""
        if self._refused:
            self._discard(len(data))
            return
        if self._late is None and not self._handlingRequest:
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(REQUEST_SECONDS, self._refuse_late)
        try:
            super().dataReceived(data)
        except Refused as refused:
            self._refuse(refused)

    def allContentReceived(self) -> None:  # noqa: N802 - Twisted's name
        """Hand over a request that is complete."""
        self._forget_late()
        super().allContentReceived()

    def headerReceived(self, line: bytes) -> bool:  # noqa: N802 - Twisted's name
        """Take in a header; tell whether it is one.

        Raises:
            Refused: it is none.
        """
        try:
            return bool(super().headerReceived(line))
        except ValueError:  # a length of so many digits that Python does not read it
            self._respondToBadRequestAndDisconnect()

    def lineLengthExceeded(self, line: bytes) -> None:  # noqa: N802 - Twisted's name
        """Refuse a line that is too long to be kept.

        Raises:
            Refused: always.
        """
        self._respondToBadRequestAndDisconnect()

    def connectionLost(self, reason: Any) -> None:  # noqa: N802 - Twisted's name
        """End."""
        self._forget_late()
        super().connectionLost(reason)

    def _forget_late(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse_late(self) -> None:
        self._refuse(Refused(408, f"not complete after {REQUEST_SECONDS:g} seconds"))

    def _respondToBadRequestAndDisconnect(self) -> NoReturn:  # noqa: N802 - Twisted's name
        raise Refused(400, "its first line, a header or its length is not valid HTTP")

    def _refuse(self, refused: Refused) -> None:
        """Give the last answer, and read on for a while, so that a client that sends can see it."""
        self._refused = True
        self._forget_late()
        for request in self.requests:
            request.connectionLost(ConnectionDone())
        self.requests.clear()
        self.transport.write(last_answer(refused.status, refused.reason))
        self.transport.loseWriteConnection()
        self.setTimeout(LINGER_SECONDS)  # Twisted's idle limit, which nothing renews from here on

    def _discard(self, count: int) -> None:
        self._discarded += count
        if self._discarded > LINGER_BYTES:
            self.loseConnection()


def use_channels(server: Server) -> None:
    """Let `server`, which has its factories but no connection yet, make channels of this kind."""
    server.http_factory.protocol = Channel
