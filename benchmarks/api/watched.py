"""The product's application, and beside it how many tasks its event loop holds: `GET /tasks`."""

import asyncio
from typing import Any

from openjev_site.asgi import application as product


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Serve one connection."""
    if scope["type"] != "http" or scope["path"] != "/tasks":
        await product(scope, receive, send)
        return
    count = b"%d" % len(asyncio.all_tasks())
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(count))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": count})
