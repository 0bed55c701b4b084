"""One log line per API request: id, method, path, status, milliseconds.

It never holds a state, a prompt, a key, a query string or a body: whoever reads the log learns
that something was asked, not what.
"""

import logging
import random
import time
from typing import Any, cast

from django.http import HttpRequest
from rest_framework.request import Request

logger = logging.getLogger(__name__)

SCOPE_KEY = "openjev.request_id"
CLIENT_CLOSED_REQUEST = 499


def new_request_id() -> str:
    """Make an id that no other request has."""
    return f"req_{random.getrandbits(128):032x}"


def request_id_of(request: HttpRequest | Request) -> str:
    """Read the id that the ASGI edge gave to this request.

    Where there is no edge (a test client, another server) an id is made once and kept, so that a
    response and its log line still agree.
    """
    scope = cast("dict[str, Any]", getattr(request, "scope", None) or request.META)
    if SCOPE_KEY not in scope:
        scope[SCOPE_KEY] = new_request_id()
    return str(scope[SCOPE_KEY])


def log_request(
    request: HttpRequest | Request, status: int, started: float, *, level: int = logging.INFO
) -> None:
    """Write the line of a finished request.

    Args:
        request: whose method, path and id to name.
        status: the HTTP status sent, or 499 where the client left before there was one.
        started: `time.perf_counter()` when the request came in.
        level: of the line, unless the status is 500, which is an error whatever was asked.
    """
    logger.log(
        logging.ERROR if status == 500 else level,
        "%s %s %r %d %.1f ms",
        request_id_of(request),
        request.method,
        request.path[:200],
        status,
        (time.perf_counter() - started) * 1000,
    )
