"""The last resort: an exception that nothing else turned into a response.

The caller gets the contract's error shape and the request id, and nothing about the exception;
the log gets the traceback under the same id.
"""

import logging

from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
)

from evaluations.errors import internal_message
from openjev_site.replies import CLOSE, send_error
from openjev_site.request_id import request_id_of

logger = logging.getLogger(__name__)


class Failures:
    """ASGI wrapper that answers 500 where the application raises before it answers."""

    def __init__(self, app: ASGI3Application) -> None:
        self._app = app

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def noting_start(event: ASGISendEvent) -> None:
            nonlocal started
            started = True
            await send(event)

        try:
            await self._app(scope, receive, noting_start)
        except Exception:
            request_id = request_id_of(scope)
            logger.exception("%s failed with an unexpected exception.", request_id)
            if started:
                raise  # half an answer is out: only closing the connection is honest
            await send_error(
                scope,
                send,
                500,
                internal_message(request_id),
                headers=[CLOSE],
            )
