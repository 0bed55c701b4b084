"""uvicorn's HTTP on a loop of ours, where it is installed; with uvloop, where that is.

Only its protocol is used: its `Server` would take the signals, drive the lifespan and end the
process by itself, all of which `backend.runtime` does. Nothing here knows what the application
does.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any, cast

from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
)
from uvicorn.config import Config
from uvicorn.server import ServerState

from backend.serving.base_server import BaseServer
from backend.serving.refusals import refusal
from backend.serving.uvicorn_channel import Channel

_IDLE_SECONDS = 60  # as long as Daphne's: a balancer keeps connections, too


class UvicornServer(BaseServer):
    """Serves `application` while `run` runs, from the moment it is told to accept connections.

    Args:
        application: ASGI 3 application; it bounds bodies itself.
        listener: where connections come in; closed in the end.
        http_timeout: seconds after which an unanswered request is given up.
    """

    def __init__(
        self, application: ASGI3Application, listener: socket.socket, *, http_timeout: float
    ) -> None:
        super().__init__(listener)
        self._config = Config(
            cast("Any", Bounded(application, http_timeout)),
            http=Channel,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_IDLE_SECONDS,
        )
        self._config.load()
        self._state = ServerState()
        self._connecting: set[asyncio.Task[Any]] = set()

    def run(self, main: Callable[[], Coroutine[Any, Any, int]]) -> int:
        """Serve until `main` is done; blocks, and works once in a process.

        Args:
            main: makes the coroutine that decides when and how long to serve.

        Returns:
            What `main` returned.
        """
        with asyncio.Runner(loop_factory=self._config.get_loop_factory()) as runner:
            return runner.run(self._run(main))

    async def _run(self, main: Callable[[], Coroutine[Any, Any, int]]) -> int:
        try:
            return await main()
        finally:
            await self.stop_accepting()
            await self._drop_connections()

    async def _drop_connections(self) -> None:
        for connection in self._channels():
            connection.drop()
        await asyncio.sleep(0)  # they learn of it first, and then of their cancellation
        tasks = [*self._state.tasks, *self._connecting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connecting = loop.create_task(
            loop.connect_accepted_socket(
                lambda: Channel(self._config, self._state, {}, loop), connection
            )
        )
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)

    def _is_busy(self) -> bool:
        return any(connection.is_busy for connection in self._channels())

    def _channels(self) -> list[Channel]:
        return cast("list[Channel]", list(self._state.connections))


class Bounded:
    """ASGI wrapper for an application that may forget to answer.

    Args:
        application: what is wrapped.
        seconds: how long it may take for one request.
    """

    def __init__(self, application: ASGI3Application, seconds: float) -> None:
        self._application = application
        self._seconds = seconds

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Serve one connection."""
        has_begun = False

        async def noting(event: ASGISendEvent) -> None:
            nonlocal has_begun
            has_begun = True
            await send(event)

        try:
            async with asyncio.timeout(self._seconds) as limit:
                await self._application(scope, receive, noting)
        except TimeoutError:
            if has_begun or not limit.expired():
                raise
            await _refuse(send)
        except asyncio.CancelledError:
            return  # the server ends and has dropped the connection: it would log a failure


async def _refuse(send: ASGISendCallable) -> None:
    _, headers, content = refusal(503, "the application has not answered")
    await send(
        {
            "type": "http.response.start",
            "status": 503,
            "headers": [*headers, (b"connection", b"close")],
            "trailers": False,
        }
    )
    await send({"type": "http.response.body", "body": content, "more_body": False})
