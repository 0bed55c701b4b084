"""A closed-loop load: N connections that each post one evaluation after another, all different.

Counts what was answered and how long each answer took; anything but a 200 is an error. It works
for a bounded time and holds nothing but the figures.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import httptools

ANSWER_SECONDS = 30.0


@dataclass(slots=True)
class Tally:
    """What one load saw; latencies in seconds, of the answers that were 200."""

    latencies: list[float] = field(default_factory=list)
    errors: int = 0
    seconds: float = 0.0


class Client(asyncio.Protocol):
    """One keep-alive connection."""

    def __init__(self) -> None:
        self._status: asyncio.Future[int] | None = None
        self._parser: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take in bytes."""
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Hand over the status."""
        if self._status and not self._status.done():
            self._status.set_result(self._parser.get_status_code())

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits."""
        if self._status and not self._status.done():
            self._status.set_result(0)

    async def post(self, request: bytes) -> int:
        """Send a request, of any method; return the status, 0 for a closed connection."""
        self._status = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self.transport.write(request)
        async with asyncio.timeout(ANSWER_SECONDS):
            return await self._status


def http_request(port: int, body: bytes) -> bytes:
    """Write the bytes of one evaluation."""
    head = (
        f"POST /v1/systemone HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nuser-agent: load\r\n"
        f"accept: */*\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def get_request(port: int, path: str) -> bytes:
    """Write the bytes of a GET."""
    return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept: */*\r\n\r\n".encode()


async def connect(port: int) -> Client:
    """Open a connection to a server on loopback."""
    _, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port)
    return client


async def load(port: int, bodies: Iterator[bytes], *, connections: int, seconds: float) -> Tally:
    """Put a server under load.

    Args:
        port: on loopback.
        bodies: evaluations; the load ends with them.
        connections: how many post at the same time.
        seconds: how long at most; a request under way then is still waited for and counted.
    """
    tally = Tally()
    begun = time.perf_counter()

    async def one() -> None:
        client: Client | None = None
        for body in bodies:
            if time.perf_counter() - begun > seconds:
                break
            if client is None or client.transport.is_closing():
                client = await connect(port)
            request = http_request(port, body)
            started = time.perf_counter()
            try:
                status = await client.post(request)
            except TimeoutError:
                status = 0
                client.transport.abort()
            if status == 200:
                tally.latencies.append(time.perf_counter() - started)
            else:
                tally.errors += 1
        if client is not None:
            client.transport.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    tally.seconds = time.perf_counter() - begun
    return tally
