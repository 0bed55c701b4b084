"""What is answered in place of the application, whichever server took the request in.

The form is the one that all errors of the API have, with an id that is in the log, too. Nothing
here knows how a server sends it.
"""

import json
import logging
import uuid
from http import HTTPStatus

logger = logging.getLogger(__name__)

PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus} | {529: b"Overloaded"}
"""The name of every status, as it stands in a status line."""

_ERRORS = {
    400: ("api_usage_error", "The request is malformed: {reason}."),
    408: ("api_usage_error", "The request came too slowly: it was {reason}. Send it faster."),
    413: ("request_too_large", "The request is too large: {reason}. Send a shorter one."),
    503: ("backend_unavailable", "The server gave no answer within its time limit."),
}
_UNFORESEEN = ("internal_error", "The server failed unexpectedly.")


def refusal(status: int, reason: str) -> tuple[bytes, list[tuple[bytes, bytes]], bytes]:
    """Write, and log, the refusal of what does not become a request, or gets no answer.

    Args:
        status: the HTTP status.
        reason: what is wrong, in a few words and without anything the caller sent.

    Returns:
        The status' name, the headers and the body.
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
    return PHRASES.get(status, b"Status"), headers, content


def last_answer(status: int, reason: str) -> bytes:
    """The whole of a refusal after which the connection is closed.

    Args:
        status: the HTTP status.
        reason: as for `refusal`.
    """
    phrase, headers, content = refusal(status, reason)
    lines = [b"HTTP/1.1 %d %s" % (status, phrase)]
    lines += [b"%s: %s" % header for header in [*headers, (b"connection", b"close")]]
    return b"\r\n".join([*lines, b"", content])
