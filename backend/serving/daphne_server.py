"""Daphne inside this process, on a loop that other coroutines share.

Importing this module installs Twisted's asyncio reactor, which must happen before anything else
imports Twisted: so it is imported only by the command that serves. Nothing here knows what the
application does.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from asgiref.typing import ASGI3Application
from daphne.server import Server, reactor, twisted_loop  # installs the reactor: before Twisted

from backend.serving.base_server import BaseServer
from backend.serving.daphne_channel import use_channels
from backend.serving.uploads import bound_uploads


class DaphneServer(BaseServer):
    """Serves `application` while `run` runs, from the moment it is told to accept connections.

    Args:
        application: ASGI 3 application.
        listener: where connections come in; closed in the end.
        http_timeout: seconds after which an unanswered request is given up.
        max_body_bytes: the longest body `application` takes.
    """

    def __init__(
        self,
        application: ASGI3Application,
        listener: socket.socket,
        *,
        http_timeout: float,
        max_body_bytes: int,
    ) -> None:
        super().__init__(listener)
        self._max_body_bytes = max_body_bytes
        self._server = Server(
            application,
            endpoints=["unused"],
            signal_handlers=False,
            http_timeout=http_timeout,
            server_name="",
            verbosity=0,
        )
        self._server.endpoints = []  # it would open them before anything else is done
        self._task: asyncio.Task[int] | None = None

    def run(self, main: Callable[[], Coroutine[Any, Any, int]]) -> int:
        """Serve until `main` is done; blocks, and works once in a process.

        Args:
            main: makes the coroutine that decides when and how long to serve.

        Returns:
            What `main` returned; 1 when something else stopped the server.
        """
        self._server.ready_callable = partial(self._begin, main)
        self._server.run()
        if self._task is None:
            raise RuntimeError("Daphne has not begun.")
        if not self._task.done():  # the reactor was stopped by something else
            self._task.cancel()
            twisted_loop.run_until_complete(asyncio.wait([self._task]))
            return 1
        return self._task.result()

    def _take(self, connection: socket.socket) -> None:
        # Twisted duplicates it, and asks for an address that a client which has left does not have
        with connection, suppress(OSError):
            reactor.adoptStreamConnection(
                connection.fileno(), connection.family, self._server.http_factory
            )

    def _is_busy(self) -> bool:
        unanswered = any("disconnected" not in c for c in self._server.connections.values())
        return unanswered or bool(reactor.getWriters())

    def _begin(self, main: Callable[[], Coroutine[Any, Any, int]]) -> None:
        use_channels(self._server)
        bound_uploads(self._server, self._max_body_bytes)
        self._task = twisted_loop.create_task(main())
        self._task.add_done_callback(lambda _: self._server.stop())
