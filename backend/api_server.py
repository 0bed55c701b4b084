"""Daphne inside this process, on a loop that other coroutines share.

Importing this module installs Twisted's asyncio reactor, which must happen before anything else
imports Twisted: so it is imported only by the command that serves. Nothing here knows what the
application does.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from asgiref.typing import ASGI3Application
from daphne.endpoints import build_endpoint_description_strings
from daphne.server import Server, reactor, twisted_loop  # installs the reactor: before Twisted
from twisted.internet.tcp import Port

from backend.channel import use_channels
from backend.launch import LaunchError
from backend.uploads import bound_uploads

Main = Callable[[], Coroutine[Any, Any, int]]

_POLL_SECONDS = 0.01


class ApiServer:
    """Serves `application` on `host` and `port` for as long as `run` runs.

    Args:
        application: ASGI 3 application.
        host: address to listen on.
        port: TCP port.
        http_timeout: seconds after which an unanswered request is given up.
        max_body_bytes: the longest body `application` takes.
    """

    def __init__(
        self,
        application: ASGI3Application,
        *,
        host: str,
        port: int,
        http_timeout: float,
        max_body_bytes: int,
    ) -> None:
        self._max_body_bytes = max_body_bytes
        self._where = f"{host}:{port}"
        self._server = Server(
            application,
            endpoints=build_endpoint_description_strings(host=host, port=port),
            signal_handlers=False,
            http_timeout=http_timeout,
            server_name="",
            verbosity=0,
        )
        self._task: asyncio.Task[int] | None = None

    def run(self, main: Main) -> int:
        """Serve until `main` is done; blocks, and works once in a process.

        Args:
            main: makes the coroutine that decides how long to serve; it is begun when the port is
                open, and not at all when it could not be opened.

        Returns:
            What `main` returned.

        Raises:
            LaunchError: the port could not be opened.
        """
        self._server.ready_callable = partial(self._begin, main)
        self._server.run()
        if self._task is None:
            raise LaunchError(f"The API cannot listen on {self._where}. Choose another --port.")
        if not self._task.done():  # the reactor was stopped by something else
            self._task.cancel()
            twisted_loop.run_until_complete(asyncio.wait([self._task]))
            return 1
        return self._task.result()

    async def stop_accepting(self) -> None:
        """Close the listening socket; connections that are open stay so."""
        ports: list[Any] = [reader for reader in reactor.getReaders() if isinstance(reader, Port)]
        for port in ports:
            await port.stopListening().asFuture(twisted_loop)

    async def finish_answers(self, seconds: float) -> None:
        """Wait until every request is answered and the answers are on the wire.

        Args:
            seconds: the longest to wait.
        """
        deadline = twisted_loop.time() + seconds
        while self._busy() and twisted_loop.time() < deadline:  # noqa: ASYNC110 - no such event
            await asyncio.sleep(_POLL_SECONDS)

    def _busy(self) -> bool:
        unanswered = any("disconnected" not in c for c in self._server.connections.values())
        return unanswered or bool(reactor.getWriters())

    def _begin(self, main: Main) -> None:
        use_channels(self._server)
        bound_uploads(self._server, self._max_body_bytes)
        self._task = twisted_loop.create_task(main())
        self._task.add_done_callback(lambda _: self._server.stop())
