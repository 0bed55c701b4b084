"""Daphne's HTTP request, kept to what is a server's business.

Twisted would read forms out of a body before the application is asked, which takes up the event
loop for as long as the body is long, and ends in a closed connection where the body is no form.
Daphne describes in HTML what it refuses itself. Nothing here knows what a request is about.
"""

import json
import logging
import re
import uuid
from http import HTTPStatus
from typing import Any

from daphne.http_protocol import WebRequest

logger = logging.getLogger(__name__)

_ERRORS = {
    400: ("api_usage_error", "The request is malformed: {reason}."),
    408: ("api_usage_error", "The request came too slowly: it was {reason}. Send it faster."),
    413: ("request_too_large", "The request is too large: {reason}. Send a shorter one."),
    503: ("backend_unavailable", "The server gave no answer within its time limit."),
}
_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus} | {529: b"Overloaded"}
_AUTHORITY = re.compile(rb"\Ahttps?://[^/?]*/?", re.IGNORECASE)
_UNFORESEEN = ("internal_error", "The server failed unexpectedly.")


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
        super().setResponseCode(code, message or _PHRASES.get(code, b"Status"))

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


def refusal(status: int, reason: str) -> tuple[bytes, list[tuple[bytes, bytes]], bytes]:
    """Write, and log, the refusal of something that is no request for the application.

    Args:
        status: the HTTP status.
        reason: what is wrong, in a few words and without anything the caller sent.

    Returns:
        The status' name, the headers and the body, in the form that all errors of the API have.
    """
    request_id = f"req_{uuid.uuid4().hex}"
    logger.info("%s refused with %d: %s", request_id, status, reason)
    name, sentence = _ERRORS.get(status, _UNFORESEEN)
    message = sentence.format(reason=reason[:1].lower() + reason[1:])
    content = json.dumps(
        {
            "error": {"message": message, "type": name},
            "detail": {"error_type": name, "message": message},
        }
    ).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(content)),
        (b"x-typesafe-request-id", request_id.encode()),
        (b"x-request-id", request_id.encode()),
    ]
    return _PHRASES.get(status, b"Status"), headers, content
