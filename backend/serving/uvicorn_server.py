"""uvicorn's HTTP on a loop of ours, where it is installed; with uvloop, where that is.

Only its protocol is used: its `Server` would take the signals, drive the lifespan and end the
process by itself, all of which `backend.runtime` does. Nothing here knows what the application
does.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, cast

from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    Scope,
)
from uvicorn.config import Config
from uvicorn.server import ServerState

from backend.serving.base_server import BaseServer
from backend.serving.uvicorn_channel import Channel

_IDLE_SECONDS = 60  # as long as Daphne's: a balancer keeps connections, too


class UvicornServer(BaseServer):
    """Serves `application` while `run` runs, from the moment it is told to accept connections.

    Args:
        application: ASGI 3 application; it bounds the size of bodies itself.
        listener: where connections come in; closed in the end.
        http_timeout: seconds after which a request that is complete but unanswered is given up.
    """

    def __init__(
        self, application: ASGI3Application, listener: socket.socket, *, http_timeout: float
    ) -> None:
        super().__init__(listener)
        self._http_timeout = http_timeout
        self._config = Config(
            cast("Any", _quiet(application)),
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
                lambda: Channel(
                    self._config, self._state, {}, loop, answer_seconds=self._http_timeout
                ),
                connection,
            )
        )
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)

    def _is_busy(self) -> bool:
        return any(connection.is_busy for connection in self._channels())

    def _channels(self) -> list[Channel]:
        return cast("list[Channel]", list(self._state.connections))


def _quiet(application: ASGI3Application) -> ASGI3Application:
    """Keep uvicorn from logging a failure where a request ends with the server."""

    async def quiet(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        with suppress(asyncio.CancelledError):
            await application(scope, receive, send)

    return quiet
