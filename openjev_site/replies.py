"""Answers given at the edge itself, before or instead of Django, each with its log line.

One JSON body in the contract's error shape, in one `http.response.body` message. It never repeats
anything a caller sent.
"""

import json
import logging
from collections.abc import Sequence

from asgiref.typing import (
    ASGISendCallable,
    HTTPResponseBodyEvent,
    HTTPResponseStartEvent,
    HTTPScope,
)
from django.http import JsonResponse

from evaluations.errors import error_body
from openjev_site.request_id import request_id_of

logger = logging.getLogger(__name__)

Headers = Sequence[tuple[bytes, bytes]]

CLOSE: tuple[bytes, bytes] = (b"connection", b"close")


async def send_error(
    scope: HTTPScope,
    send: ASGISendCallable,
    status: int,
    message: str,
    *,
    headers: Headers = (),
    end: bool = True,
) -> None:
    """Send one whole error response.

    Args:
        scope: the request it answers.
        send: the ASGI callable of the request.
        status: the HTTP status, which decides the error's type.
        message: a complete sentence.
        headers: headers beyond type and length.
        end: `False` leaves the response open for `end_response`, its bytes being complete.
    """
    logger.info("%s %s %r %d", request_id_of(scope), scope["method"], scope["path"][:200], status)
    body = json.dumps(error_body(status, message), separators=(",", ":")).encode()
    start: HTTPResponseStartEvent = {
        "type": "http.response.start",
        "status": status,
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *headers,
        ],
        "trailers": False,
    }
    await send(start)
    await send(_body(b"" if scope["method"] == "HEAD" else body, more=not end))


def method_not_allowed() -> JsonResponse:
    """Answer a method that a page or a file does not have."""
    message = "This address does not have that method. Use GET or HEAD."
    return JsonResponse(error_body(405, message), status=405, headers={"Allow": "GET, HEAD"})


async def end_response(send: ASGISendCallable) -> None:
    """Finish a response that `send_error` left open."""
    await send(_body(b"", more=False))


def _body(body: bytes, *, more: bool) -> HTTPResponseBodyEvent:
    return {"type": "http.response.body", "body": body, "more_body": more}
