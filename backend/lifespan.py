"""Drives an ASGI application's `lifespan`, for a server that does not.

Start-up before the first request, shut-down after the last: an application may refuse the first
and takes its time, within bounds, for the second. In between it may learn that it can never work:
it says so through `state["refused"]`, a coroutine function that returns the reason once there is
one. An application that knows no lifespan is served without.
"""

import asyncio
import logging
from typing import Any, Protocol, cast

from asgiref.typing import ASGI3Application

logger = logging.getLogger(__name__)

_STARTUP_SECONDS = 30.0


class StartupRefused(Exception):
    """The application reported that it cannot start."""


class Served(Protocol):
    """An application that is served, in this process or in others."""

    async def startup(self) -> None:
        """Begin; raises `StartupRefused`."""
        ...

    async def ready(self) -> None:
        """Wait until every process that serves it can be asked how it is."""
        ...

    async def refused(self) -> str:
        """Wait until it is certain that it can never work; returns the reason."""
        ...

    async def shutdown(self, seconds: float) -> None:
        """Let it finish, within `seconds`."""
        ...


class Lifespan:
    """The lifespan of `application`, which must be driven on one loop."""

    def __init__(self, application: ASGI3Application) -> None:
        self._application = application
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._state: dict[str, Any] = {}

    async def startup(self) -> None:
        """Begin.

        Raises:
            StartupRefused: with the application's reason, or because it gave no answer.
        """
        task = self._task = asyncio.create_task(self._run())
        reply = await self._ask(task, "startup", _STARTUP_SECONDS)
        if reply is None and not task.done():
            await _end(task)
            raise StartupRefused(f"it gave no answer within {_STARTUP_SECONDS:g} seconds")
        if reply is not None and reply["type"] == "lifespan.startup.failed":
            await _end(task)
            raise StartupRefused(reply.get("message") or "it gave no reason")

    async def ready(self) -> None:
        """Return at once: the only process that serves it is this one."""

    async def refused(self) -> str:
        """Wait until the application is certain that it can never work; for ever if need be.

        Returns:
            The reason.
        """
        if "refused" not in self._state:
            await asyncio.Event().wait()
        reason: str = await self._state["refused"]()
        return reason

    async def shutdown(self, seconds: float) -> None:
        """Let the application finish; after `seconds`, or when cancelled, it is cut short."""
        task = self._task
        if task is None:
            return
        try:
            if not task.done() and await self._ask(task, "shutdown", seconds) is None:
                logger.warning("The application did not shut down within %g seconds.", seconds)
        finally:
            await _end(task)

    async def _ask(
        self, task: asyncio.Task[None], event: str, seconds: float
    ) -> dict[str, Any] | None:
        self._events.put_nowait({"type": f"lifespan.{event}"})
        reply = asyncio.create_task(self._replies.get())
        try:
            await asyncio.wait([reply, task], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return reply.result() if reply.done() else None
        finally:
            reply.cancel()

    async def _run(self) -> None:
        scope = {
            "type": "lifespan",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "state": self._state,
        }
        try:
            await self._application(
                cast("Any", scope), cast("Any", self._events.get), cast("Any", self._replies.put)
            )
        except Exception as error:  # the protocol's way to say that it has no lifespan
            logger.debug("The application serves without lifespan: %r", error)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
