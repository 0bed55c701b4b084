"""One HTTP exchange with an ASGI application, made by hand."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

DISCONNECT = {"type": "http.disconnect"}


@dataclass
class Reply:
    """What an application sent."""

    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def status(self) -> int:
        return int(self.events[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        pairs = self.events[0]["headers"]
        named = {name.decode().lower(): value.decode("latin-1") for name, value in pairs}
        assert len(named) == len(pairs), "a header was sent twice"
        return named

    @property
    def body(self) -> bytes:
        return b"".join(event.get("body", b"") for event in self.events[1:])

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def complete(self) -> bool:
        return bool(self.events) and not self.events[-1].get("more_body", False)


def http_scope(
    method: str = "POST",
    path: str = "/v1/systemone",
    headers: Iterable[tuple[str, str]] = (),
    query: bytes = b"",
) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
    }


def body_events(chunks: Sequence[bytes]) -> list[dict[str, Any]]:
    last = len(chunks) - 1
    return [
        {"type": "http.request", "body": chunk, "more_body": index < last}
        for index, chunk in enumerate(chunks)
    ]


async def exchange(
    app: Any,
    method: str = "POST",
    path: str = "/v1/systemone",
    *,
    headers: Iterable[tuple[str, str]] = (),
    chunks: Sequence[bytes] = (b"",),
    events: Sequence[dict[str, Any]] | None = None,
    query: bytes = b"",
) -> Reply:
    """Run one request; after its last event the client stays and says nothing."""
    waiting = list(body_events(chunks) if events is None else events)
    reply = Reply()

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    async def send(event: dict[str, Any]) -> None:
        reply.events.append(event)

    async with asyncio.timeout(30):
        await app(http_scope(method, path, headers, query), receive, send)
    return reply


class Echo:
    """An application that takes a body as Django does and keeps what it saw."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {}
        self.body: bytes | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        body = b""
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                return
            body += event["body"]
            if not event["more_body"]:
                break
        self.body = body
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.scope["headers"]}
