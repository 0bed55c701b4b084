"""The request id: one per HTTP request, on every response whoever makes it.

Downstream reads it as `scope["openjev.request_id"]`. An id a caller sends is never taken over: it
could collide, or carry text into log lines.
"""

from typing import cast

from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
)

from evaluations.request_log import SCOPE_KEY, new_request_id

_NAMES = (b"x-typesafe-request-id", b"x-request-id")


def request_id_of(scope: Scope) -> str:
    """Read the id that `RequestId` gave to a request (empty outside of it)."""
    return str(cast("dict[str, object]", scope).get(SCOPE_KEY, ""))


class RequestId:
    """ASGI wrapper that makes the id and adds both headers to the response."""

    def __init__(self, app: ASGI3Application) -> None:
        self._app = app

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_request_id()
        value = request_id.encode()

        async def send_with_id(event: ASGISendEvent) -> None:
            if event["type"] == "http.response.start":
                kept = [pair for pair in event["headers"] if pair[0].lower() not in _NAMES]
                event = {**event, "headers": [*kept, *((name, value) for name in _NAMES)]}
            await send(event)

        marked = cast("Scope", {**scope, SCOPE_KEY: request_id})
        await self._app(marked, receive, send_with_id)
