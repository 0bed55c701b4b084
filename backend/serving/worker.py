"""One process of the API, of several that share a port: a program that `workers` starts.

Its standard input is a socket to whoever started it. There it says that it is ready, or why it can
never be, that it was asked to end, and is told to stop. The end of that socket means that the
starter has died: then nothing is left to be done, and the process ends at once. Its log lines name
the process, and at SIGUSR1 it writes to standard error what every thread is doing.
"""

import argparse
import asyncio
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, cast

import django
import httpx
from asgiref.typing import ASGI3Application
from django.conf import settings
from django.utils.module_loading import import_string

from backend.config import Config
from backend.lifespan import Lifespan, StartupRefused
from backend.runtime import CLOSING_SECONDS, first_of, wind_up
from backend.serving.heartbeat import beating, pause_for
from backend.serving.servers import Server, make_server
from backend.serving.share import Share, counters_in
from backend.watchers import FAILED

logger = logging.getLogger("backend.serving.worker")  # this module is run as a program

READY = "ready"
REFUSED = "refused "
LEAVING = "leaving"
STOP = "stop"
SHOW_THREADS = signal.SIGUSR1

_PAUSE_SECONDS = 0.2


def main(argv: Sequence[str]) -> int:
    """Serve until told to stop.

    Returns:
        The exit code: 1 when the application cannot start, else 0.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--application", required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--listener", type=int, required=True, help="descriptor")
    parser.add_argument("--counters", type=int, required=True, help="descriptor")
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--late", action="store_true", help="accept nothing before it is ready")
    arguments = parser.parse_args(argv)
    faulthandler.register(SHOW_THREADS)
    _sign_log_lines()
    django.setup()
    counters = counters_in(arguments.counters)
    settings.OPENJEV_SHARE = Share(counters.running, arguments.index)
    config: Config = settings.OPENJEV
    application: ASGI3Application = import_string(arguments.application)
    listener = socket.socket(fileno=arguments.listener)
    server = make_server(arguments.server, application, listener, config)
    starter = Starter(socket.socket(fileno=0))

    def work() -> Coroutine[Any, Any, int]:
        serving = _work(server, application, starter, config, late=arguments.late)
        return beating(serving, counters.beats, arguments.index, pause_for(config.hang_timeout))

    return server.run(work)


def _sign_log_lines() -> None:
    """Let each line of the log tell which of the processes has written it."""
    make, sign = logging.getLogRecordFactory(), f"[{os.getpid()}]"

    def make_signed(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        record.name += sign
        return record

    logging.setLogRecordFactory(make_signed)


class Starter:
    """The process that started this one.

    Args:
        connection: to it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stop = asyncio.Event()

    def listen(self) -> None:
        """Begin to listen to it, and to SIGTERM, which means the same."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        # a thread, because it must notice the starter's death even where the loop is blocked
        threading.Thread(target=self._listen, args=(loop,), daemon=True).start()

    def say(self, line: str) -> None:
        """Tell it something; that it has died is noticed elsewhere."""
        with suppress(ConnectionError):
            self._connection.sendall(line.encode(errors="backslashreplace") + b"\n")

    async def stop_asked(self) -> int:
        """Wait until an end is wanted, and confirm it; returns the exit code."""
        await self._stop.wait()
        self.say(LEAVING)
        return 0

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(ConnectionError), self._connection.makefile() as lines:
            for _ in lines:  # there is but one thing to say
                with suppress(RuntimeError):  # the loop has been closed, for another reason
                    loop.call_soon_threadsafe(self._stop.set)
        os._exit(FAILED)


async def _work(
    server: Server, application: ASGI3Application, starter: Starter, config: Config, *, late: bool
) -> int:
    lifespan = Lifespan(application)
    starter.listen()
    try:
        await lifespan.startup()
        if not late:
            await server.start_accepting()
        serving = _serve(server, application, starter, late=late)
        return await first_of([starter.stop_asked(), serving, _tell_refusal(lifespan, starter)])
    except StartupRefused as error:
        logger.error("The API cannot start: %s.", error)
        return FAILED
    finally:
        await wind_up(None, server, lifespan, config.drain_timeout + CLOSING_SECONDS, 0)


async def _serve(
    server: Server, application: ASGI3Application, starter: Starter, *, late: bool
) -> int:
    await _wait_until_healthy(application)
    if late:
        await server.start_accepting()
    starter.say(READY)
    await asyncio.Event().wait()
    return FAILED


async def _wait_until_healthy(application: ASGI3Application) -> None:
    """Ask this process' own application: at the port, any of them would answer."""
    transport = httpx.ASGITransport(cast("Any", application), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
        while (await client.get("/health")).status_code != 200:  # noqa: ASYNC110 - no such event
            await asyncio.sleep(_PAUSE_SECONDS)


async def _tell_refusal(lifespan: Lifespan, starter: Starter) -> int:
    starter.say(REFUSED + " ".join((await lifespan.refused()).split()))
    await asyncio.Event().wait()
    return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
