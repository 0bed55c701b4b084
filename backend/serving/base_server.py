"""What both servers do in the same way: take connections, and wait until all is answered.

Knows neither of them, and installs no loop.
"""

import asyncio
import socket
from abc import ABC, abstractmethod

from backend.serving.acceptor import Acceptor

_POLL_SECONDS = 0.01


class BaseServer(ABC):
    """A server that is told when to take connections.

    Args:
        listener: where connections come in; closed in the end.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._acceptor: Acceptor | None = None

    async def start_accepting(self) -> None:
        """Take connections."""
        self._acceptor = Acceptor(self._listener, self._take)

    async def stop_accepting(self) -> None:
        """Close the listening socket; connections that are open stay so."""
        if self._acceptor is not None:
            self._acceptor.close()

    async def finish_answers(self, seconds: float) -> None:
        """Wait until every request is answered and the answers are on the wire.

        Args:
            seconds: the longest to wait.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._is_busy() and loop.time() < deadline:  # noqa: ASYNC110 - no such event
            await asyncio.sleep(_POLL_SECONDS)

    @abstractmethod
    def _take(self, connection: socket.socket) -> None:
        """Serve a connection, which does not block."""

    @abstractmethod
    def _is_busy(self) -> bool:
        """Whether an answer is being made, or is not on the wire yet."""
