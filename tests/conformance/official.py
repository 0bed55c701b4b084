"""The official Python SDK's two clients behind one face, with what they sent."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx2
from typesafe_sdk import (
    AsyncTypeSafeClient,
    ListModelsResponse,
    RetryPolicy,
    SystemOneResponse,
    TypeSafeClient,
)

Kind = Literal["sync", "async"]
KINDS: tuple[Kind, ...] = ("sync", "async")
NO_RETRY = RetryPolicy(max_retries=0)
SECONDS = 30.0
PAUSE = 0.02


@dataclass
class Official:
    """One client of the SDK.

    Attributes:
        client: the blocking client, or the one for coroutines.
        sent: every request that left it, tries again included.
    """

    client: TypeSafeClient | AsyncTypeSafeClient
    sent: list[httpx2.Request] = field(default_factory=list)

    async def ask(self, state: Any, questions: Any, **options: Any) -> SystemOneResponse:
        if isinstance(self.client, AsyncTypeSafeClient):
            return await self.client.system_one(state, questions, **options)
        return await asyncio.to_thread(self.client.system_one, state, questions, **options)

    async def models(self) -> ListModelsResponse:
        if isinstance(self.client, AsyncTypeSafeClient):
            return await self.client.models.list()
        return await asyncio.to_thread(self.client.models.list)


def trickle(request: httpx2.Request) -> None:
    """Let a request take seconds: each byte of its body is sent alone."""
    request.stream = _Trickle(request.content)


class _Trickle(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    def __iter__(self) -> Iterator[bytes]:
        for byte in self._content:
            time.sleep(PAUSE)
            yield bytes([byte])

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for byte in self._content:
            await asyncio.sleep(PAUSE)
            yield bytes([byte])


@asynccontextmanager
async def official(
    kind: Kind,
    url: str,
    *,
    key: str = "any",
    compression: Literal["zstd", False] | None = None,
    retry: RetryPolicy = NO_RETRY,
    alter: Callable[[httpx2.Request], None] = lambda request: None,
) -> AsyncIterator[Official]:
    """Make a client for the server at `url`, and close it.

    Args:
        kind: which client.
        url: the server's root.
        key: API key; the SDK does without none.
        compression: `None` is the SDK's own choice: zstd where Python has it.
        retry: which failures it tries again.
        alter: what becomes of each request on its way.
    """
    sent: list[httpx2.Request] = []

    def note(request: httpx2.Request) -> None:
        sent.append(request)
        alter(request)

    options: Any = {
        "base_url": url,
        "api_key": key,
        "compression": compression,
        "retry": retry,
        "timeout": SECONDS,
    }
    if kind == "sync":
        hooks: Any = {"request": [note]}
        with TypeSafeClient(http_client=httpx2.Client(event_hooks=hooks), **options) as client:
            yield Official(client, sent)
        return

    async def async_note(request: httpx2.Request) -> None:
        note(request)

    hooks = {"request": [async_note]}
    http_client = httpx2.AsyncClient(event_hooks=hooks)
    async with AsyncTypeSafeClient(http_client=http_client, **options) as async_client:
        yield Official(async_client, sent)
