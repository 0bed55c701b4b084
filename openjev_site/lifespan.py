"""When work begins and when it ends: start-up, draining, shut-down.

The runtime is started by the server's `lifespan.startup`, or by the first HTTP request where the
server has no lifespan protocol (plain `daphne openjev_site.asgi:application`). A server that looks
into the lifespan's state finds `refused` there, and learns from it that waiting is in vain. On
`lifespan.shutdown` requests are refused that have not come this far, those whose body is still on
its way included (`openjev_site.edge`); those in flight get `drain_seconds`, or less from a server
that has no such time, then the runtime stops. This module never knows what the runtime does.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    HTTPScope,
    LifespanScope,
    Scope,
)

from openjev_site.replies import CLOSE, send_error

logger = logging.getLogger(__name__)


class Startable(Protocol):
    """What is started before the first request and stopped after the last."""

    def start(self) -> None:
        """Begin, without waiting; calling it again does nothing."""

    async def refused(self) -> str:
        """Wait until it is certain that it can never work; return the reason."""
        ...

    async def stop(self) -> None:
        """End everything that was begun."""


class Lifespan:
    """ASGI wrapper that answers `lifespan` and counts the HTTP requests in flight.

    Args:
        app: what is wrapped.
        runtime: hands out what is started and stopped.
        drain_seconds: how long requests in flight may go on once the server stops.
    """

    def __init__(
        self,
        app: ASGI3Application,
        runtime: Callable[[], Startable],
        *,
        drain_seconds: float,
    ) -> None:
        self._app = app
        self._runtime = runtime
        self._drain_seconds = drain_seconds
        self._draining = False
        self._in_flight = 0
        self._idle = asyncio.Event()

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self._serve_lifespan(scope, receive, send)
        elif scope["type"] == "http":
            await self._serve_http(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _serve_lifespan(
        self, scope: LifespanScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                try:
                    runtime = self._runtime()
                    runtime.start()
                    if "state" in scope:
                        scope["state"]["refused"] = runtime.refused
                except Exception as error:
                    logger.exception("The start-up failed.")
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif event["type"] == "lifespan.shutdown":
                try:
                    await self._end()
                except Exception as error:
                    logger.exception("The shut-down failed.")
                    await send({"type": "lifespan.shutdown.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve_http(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        if self._draining:
            await send_error(
                scope,
                send,
                503,
                "The server is shutting down and takes no new requests. Try again in 2 seconds.",
                headers=[(b"retry-after", b"2"), CLOSE],
            )
            return
        self._runtime().start()
        self._in_flight += 1
        self._idle.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def _end(self) -> None:
        try:
            await self._drain()
        finally:  # a server that waits no longer cancels this: who waits for an answer is told then
            await self._runtime().stop()

    async def _drain(self) -> None:
        self._draining = True
        if not self._in_flight:
            return
        logger.info("Waiting for %s in flight.", _requests(self._in_flight))
        try:
            async with asyncio.timeout(self._drain_seconds):
                await self._idle.wait()
        except TimeoutError:
            logger.warning(
                "%s did not finish within %g seconds; stopping all the same.",
                _requests(self._in_flight),
                self._drain_seconds,
            )


def _requests(number: int) -> str:
    return "1 request" if number == 1 else f"{number} requests"
