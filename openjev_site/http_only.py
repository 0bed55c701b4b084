"""What is not HTTP: WebSockets are turned away, since Django would fail on them."""

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope


class HttpOnly:
    """ASGI wrapper that closes every WebSocket before it opens."""

    def __init__(self, app: ASGI3Application) -> None:
        self._app = app

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Serve one connection."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000, "reason": None})
            return
        await self._app(scope, receive, send)
