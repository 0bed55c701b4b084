"""The servers of the public API: which there are, and which is meant.

Each has HTTP limits of its own making and is driven in the same way, by `backend.runtime` or
`worker`. Nothing here knows what the application does.
"""

import socket
import sys
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from typing import Any, Protocol

from asgiref.typing import ASGI3Application

from backend.config import Config
from backend.launch import LaunchError

SERVERS = ("daphne", "uvicorn")

# an evaluation times out by itself; the server's own limit is for an application that forgets to
_HTTP_TIMEOUT_MARGIN = 30.0


class Server(Protocol):
    """Serves an application, on a loop that other coroutines share."""

    def run(self, main: Callable[[], Coroutine[Any, Any, int]]) -> int:
        """Run the loop until the coroutine that `main` makes is done; returns what it returns."""
        ...

    async def start_accepting(self) -> None:
        """Take connections."""
        ...

    async def stop_accepting(self) -> None:
        """Take no new connections."""
        ...

    async def finish_answers(self, seconds: float) -> None:
        """Wait until all answers are on the wire, at most `seconds`."""
        ...


def require_installed(name: str) -> None:
    """Check that a server can be used.

    Raises:
        LaunchError: it is not installed.
    """
    if find_spec(name) is None:
        raise LaunchError(
            f"{name} is not installed. Run `{sys.executable} -m pip install -r "
            "requirements-fast.txt`, or leave --server out."
        )


def make_server(
    name: str, application: ASGI3Application, listener: socket.socket, config: Config
) -> Server:
    """Make a server for `application`.

    Args:
        name: one of `SERVERS`; it is installed.
        application: ASGI 3 application.
        listener: where connections come in; the server closes it.
        config: how long things may take, and how long a body may be.
    """
    http_timeout = config.request_timeout + _HTTP_TIMEOUT_MARGIN
    if name == "uvicorn":
        from backend.serving.uvicorn_server import UvicornServer

        return UvicornServer(application, listener, http_timeout=http_timeout)
    # installs a reactor, which must not happen where none is wanted
    from backend.serving.daphne_server import DaphneServer

    return DaphneServer(
        application, listener, http_timeout=http_timeout, max_body_bytes=config.max_body_bytes
    )
