"""What Daphne keeps of a request body before the application is asked.

Daphne takes in a whole body, on disk when it is long, before it calls the application, which is
where the limit of a body is enforced. So that nobody can fill the disk meanwhile, no more is kept
here than the application needs to see that there is too much. What is refused, and how, is the
application's business.
"""

from typing import Any

from daphne.server import Server

from backend.plain_request import PlainRequest

ABORT_BYTES = 64 * 2**20


def bound_uploads(server: Server, max_bytes: int) -> None:
    """Let `server` keep at most one byte more than `max_bytes` of any body.

    Args:
        server: makes `backend.channel` channels and has no connection yet.
        max_bytes: the longest body the application takes.
    """

    class Request(BoundedRequest):
        kept_bytes = max_bytes + 1

    build = server.http_factory.buildProtocol

    def build_protocol(address: Any) -> Any:
        protocol = build(address)
        protocol.requestFactory = Request
        return protocol

    server.http_factory.buildProtocol = build_protocol


class BoundedRequest(PlainRequest):
    """A request that forgets what comes after `kept_bytes`, and hangs up after `ABORT_BYTES` more.

    Attributes:
        kept_bytes: how much of the body reaches the application.
    """

    kept_bytes = 0
    _forgotten = 0

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Take in the next bytes of the body."""
        room = self.kept_bytes - int(self.content.tell())
        super().handleContentChunk(data[:room])
        self._forgotten += max(0, len(data) - room)
        if self._forgotten > ABORT_BYTES:
            self.channel.refuse(413, f"its body is longer than {self.kept_bytes - 1} bytes")
