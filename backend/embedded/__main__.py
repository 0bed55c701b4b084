"""`python -m backend.embedded`: run the engine until it is told to stop.

Exit code 0 after SIGTERM or SIGINT, 1 when the model cannot be loaded or the computation fails, 2
when a setting cannot be used.

The engine never outlives the process that started it: it looks twice a second whether its parent is
still the same one, which works on every POSIX system. (Linux's parent-death signal is not used: it
fires when the *thread* that started the child ends.) On Windows the supervisor's job is to stop it.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from backend.config import load_config
from backend.embedded.gguf import GgufError
from backend.embedded.model import Model
from backend.embedded.scheduler import Scheduler
from backend.embedded.server import EngineServer, ServerOptions
from backend.embedded.threads import ComputePool, available_cores, single_threaded_blas

logger = logging.getLogger("openjev.engine")

# as many as OPENJEV_MAX_CONCURRENT_BRANCHES may be
QUEUE_LIMIT = 4096
_PARENT_CHECK_SECONDS = 0.5


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    options = argparse.ArgumentParser(
        prog="python -m backend.embedded",
        description="Serve a GGUF model on the CPU over SGLang's native protocol.",
    )
    options.add_argument("--gguf", type=Path, required=True, help="the weights file")
    options.add_argument("--host", default="127.0.0.1", help="address to listen on")
    options.add_argument("--port", type=int, default=30000, help="port to listen on")
    options.add_argument("--served-model-name", default=None, help="public model id")
    options.add_argument(
        "--context-length", type=int, default=2**31, help="tokens; at most the model's own length"
    )
    options.add_argument(
        "--cache-bytes", type=int, default=2**30, help="memory for cached prefixes; 0: no cache"
    )
    options.add_argument(
        "--threads", type=int, default=None, help="default: the physical cores available"
    )
    return options


async def serve(options: argparse.Namespace, api_key: str | None) -> int:
    """Run until a signal, the parent's end, or a failure; returns the exit code."""
    threads = options.threads or available_cores()
    pool = ComputePool(threads)

    def load(stop: Callable[[], bool]) -> Model:
        return Model(options.gguf, pool, stop=stop)

    scheduler = Scheduler(load, cache_bytes=options.cache_bytes, queue_limit=QUEUE_LIMIT)
    server = EngineServer(
        scheduler,
        ServerOptions(
            model_path=str(options.gguf),
            served_model_name=options.served_model_name or options.gguf.stem,
            context_length=options.context_length,
            cache_bytes=options.cache_bytes,
            api_key=api_key,
        ),
    )
    runner = web.AppRunner(
        server.application(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0
    )
    await runner.setup()
    stop = _stop_event()
    orphaned = asyncio.create_task(_parent_gone())
    stopped = asyncio.create_task(stop.wait())
    failed = asyncio.create_task(_failure(scheduler, options, threads))
    try:
        await web.TCPSite(runner, options.host, options.port).start()
        logger.info("Loading weights from %s", options.gguf.name)
        scheduler.start()
        done, _ = await asyncio.wait(
            {orphaned, stopped, failed}, return_when=asyncio.FIRST_COMPLETED
        )
        return 1 if failed in done else 0
    except OSError as error:
        logger.error("The engine cannot listen on %s:%d: %s", options.host, options.port, error)
        return 1
    finally:
        for task in (orphaned, stopped, failed):
            task.cancel()
        scheduler.close()
        await runner.cleanup()
        pool.close()


def _is_about_us(record: logging.LogRecord) -> bool:
    """Whether a line of aiohttp's log is not a caller's broken request, which it would quote.

    Routers find out by one whether a server speaks HTTP/2.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def _stop_event() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop.set)
        except NotImplementedError:  # Windows: Ctrl-C raises KeyboardInterrupt instead
            break
    return stop


async def _parent_gone() -> None:
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(_PARENT_CHECK_SECONDS)


async def _failure(scheduler: Scheduler, options: argparse.Namespace, threads: int) -> None:
    """Report readiness when it comes; return when the computation has failed."""
    ready = asyncio.ensure_future(asyncio.wrap_future(scheduler.ready))
    failure = asyncio.ensure_future(asyncio.wrap_future(scheduler.failure))
    either: set[asyncio.Future[Any]] = {ready, failure}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if ready.done():
        megabytes = ready.result().weight_bytes // 1_000_000
        name = options.gguf.name
        logger.info("Engine ready: %s, %d MB of weights, %d threads", name, megabytes, threads)
    error = await failure
    if isinstance(error, GgufError):
        logger.error("%s", error)
    else:
        logger.error("The computation failed.", exc_info=error)


def main(arguments: list[str] | None = None) -> int:
    """Parse the options and serve; returns the exit code."""
    options = parser().parse_args(arguments)
    # whoever starts the engine adds time and name: runbackend does, and so does a journal
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    logging.getLogger("aiohttp.server").addFilter(_is_about_us)
    single_threaded_blas()
    config, problems = load_config()
    fatal = [problem.message for problem in problems if problem.fatal]
    if fatal:  # a key that cannot be used must not mean no key
        logger.error("%s", " ".join(fatal))
        return 2
    return asyncio.run(serve(options, config.backend_api_key))


if __name__ == "__main__":
    sys.exit(main())
