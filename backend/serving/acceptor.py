"""Takes connections from a listening socket that other processes may listen on, too.

One at a time: a process that took all that wait would leave the others without work. Knows nothing
of what is spoken on a connection.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

logger = logging.getLogger(__name__)

UNREAD_SECONDS = 120.0
"""How long a client may take nothing of what it is sent, where the system (Linux) can tell. Servers
wait for ever, even for one that they have done with, and keep for it what it does not take."""

_PAUSE_SECONDS = 1.0


class Acceptor:
    """Begins at once; belongs to the running loop.

    Args:
        listener: a listening socket; it is closed in the end.
        take: is given each connection, which does not block.
    """

    def __init__(self, listener: socket.socket, take: Callable[[socket.socket], None]) -> None:
        self._listener = listener
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Take no more; with the last process that listens, the port is closed. May be repeated."""
        if self._listener.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # another process was quicker, or the client has left
        except OSError as error:  # no file descriptor or memory is left: connections have to wait
            logger.error("No connection can be accepted: %s.", error.strerror)
            self._loop.remove_reader(self._listener)
            self._pause = self._loop.call_later(_PAUSE_SECONDS, self._resume)
            return
        connection.setblocking(False)
        if sys.platform == "linux":
            milliseconds = int(UNREAD_SECONDS * 1000)
            with suppress(OSError):  # where there is no such option
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        self._take(connection)
