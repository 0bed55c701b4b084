"""How long a request body Daphne takes in.

Daphne takes in a whole body, on disk when it is long, before it calls the application, which is
where the limit of a body is enforced. So that nobody fills the disk meanwhile, or waits for an
answer that is known already, a body that is too long is refused here as soon as that shows: by its
declared length, before the client is told to go on, or by its first byte too many. How long a
body is when it is decompressed is the application's business.
"""

from typing import Any

from daphne.server import Server

from backend.serving.daphne_channel import Refused
from backend.serving.plain_request import PlainRequest


def bound_uploads(server: Server, max_bytes: int) -> None:
    """Let `server` take no body of more than `max_bytes`.

    Args:
        server: makes `daphne_channel` channels and has no connection yet.
        max_bytes: the longest body the application takes.
    """

    class Request(BoundedRequest):
        max_body_bytes = max_bytes

    build = server.http_factory.buildProtocol

    def build_protocol(address: Any) -> Any:
        protocol = build(address)
        protocol.requestFactory = Request
        return protocol

    server.http_factory.buildProtocol = build_protocol


class BoundedRequest(PlainRequest):
    """A request whose body is refused where it is longer than `max_body_bytes`."""

    max_body_bytes = 0

    def gotLength(self, length: int | None) -> None:  # noqa: N802 - Twisted's name
        """Learn how long the body is going to be; `None` where the client does not say.

        Raises:
            Refused: it would be too long.
        """
        self._require_room(length or 0)
        super().gotLength(length)

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Take in the next bytes of the body.

        Raises:
            Refused: they are too many.
        """
        self._require_room(int(self.content.tell()) + len(data))
        super().handleContentChunk(data)

    def _require_room(self, length: int) -> None:
        if length > self.max_body_bytes:
            raise Refused(413, f"its body is longer than the limit of {self.max_body_bytes} bytes")
