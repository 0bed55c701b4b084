"""Daphne's HTTP request, kept to what is a server's business.

Twisted would read forms out of a body before the application is asked, which takes up the event
loop for as long as the body is long, and ends in a closed connection where the body is no form.
Daphne describes in HTML what it refuses itself. Nothing here knows what a request is about.
"""

import re
from typing import Any

from daphne.http_protocol import WebRequest

from backend.serving.refusals import PHRASES, refusal

_AUTHORITY = re.compile(rb"\Ahttps?://[^/?]*/?", re.IGNORECASE)


class PlainRequest(WebRequest):  # type: ignore[misc] # Daphne has no types
    """A request whose body nobody looks into, and whose refusals are JSON."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, parsePOSTFormSubmission=False)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:  # noqa: N802
        """Take in a request; an address in the form that proxies are sent is one of ours, too.

        There is no other protocol to change to, so that a wish for one counts for nothing.
        """
        self.requestHeaders.removeHeader(b"Upgrade")
        super().requestReceived(command, _AUTHORITY.sub(b"/", path, count=1), version)

    def setResponseCode(self, code: int, message: bytes | None = None) -> None:  # noqa: N802
        """Name the status as the standard does; Twisted knows no 422 and calls it unknown."""
        super().setResponseCode(code, message or PHRASES.get(code, b"Status"))

    def basic_error(self, status: int, status_text: bytes, body: str) -> None:
        """Answer, with an id, in the form that all errors of the API have.

        Args:
            status: the HTTP status.
            status_text: unused; it is Daphne's title.
            body: what is wrong, in a few words of Daphne's.
        """
        _, headers, content = refusal(status, body)
        self.handle_reply({"type": "http.response.start", "status": status, "headers": headers})
        self.handle_reply({"type": "http.response.body", "body": content})
