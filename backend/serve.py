"""What `runbackend` does: settle the settings, look before starting anything, then run it all.

Everything that can be known to fail is found out here, cheapest first, before a process starts or
a byte is fetched. The processes themselves are `backend.runtime`'s business.
"""

import asyncio
import ipaddress
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from backend.config import Config
from backend.engine_commands import foretold, ready_sglang, shell_text
from backend.launch import (
    PROJECT_ROOT,
    LaunchError,
    embedded_command,
    is_loopback,
    open_listener,
    require_free,
)
from backend.lifespan import Lifespan
from backend.options import Options, configure, environment, require_consistent
from backend.runtime import run
from backend.serving.servers import make_server, require_installed
from backend.serving.workers import Workers
from backend.sglang.key import checks_keys
from backend.supervisor import EngineProcess


def serve(options: Options, *, say: Callable[[str], None], check: Callable[[], object]) -> int:
    """Run engine and API until something ends them.

    Args:
        options: the command line.
        say: tells the person who started it; one line.
        check: runs Django's system checks and raises where one fails.

    Returns:
        The exit code, as `backend.runtime.run` describes; 0 where only the command was shown.

    Raises:
        LaunchError: nothing was started, for the reason given.
    """
    config = configure(options)
    check()
    require_consistent(options, config)
    if options.print_command:
        say(shell_text(foretold(options, config)))
        return 0
    if not options.engine_only:
        require_installed(options.server)
        # before the engine's, which people know less about
        require_free(options.host, options.port, "--port")
    if options.connect is None:
        require_free("127.0.0.1", options.backend_port, "--backend-port")
    for warning in _warnings(options, config):
        say(f"Warning: {warning}")
    say(f"Model   {config.served_model_name} (profile {config.profile})")
    with ExitStack() as until_ready:
        engine = None
        if options.sglang_python is not None:
            engine = _sglang_engine(options, config, until_ready, say)
        elif options.connect is None:
            engine = _embedded_engine(config, options.backend_port)
        say(f"Engine  {config.backend_url}")
        start = partial(run, engine=engine, config=config, say=say, when_ready=until_ready.close)
        if not options.engine_only:
            return _serve_api(options, config, start, say)
        return asyncio.run(start(api=None, lifespan=None, url=config.backend_url))


def _serve_api(
    options: Options,
    config: Config,
    start: Callable[..., Coroutine[Any, Any, int]],
    say: Callable[[str], None],
) -> int:
    with open_listener(options.host, options.port, "--port") as listener:
        start = partial(start, url=_address(_reachable(options.host), options.port))
        address = _address(options.host, options.port)
        if options.workers > 1:
            say(f"API     {address} (starting {options.workers} workers)")
            return asyncio.run(_run_workers(options, config, listener, start))
        say(f"API     {address} (starting)")
        # imported not before the settings are final: it reads them
        application = import_string(settings.ASGI_APPLICATION)
        server = make_server(options.server, application, listener, config)
        lifespan = Lifespan(application)
        return server.run(lambda: start(api=server, lifespan=lifespan))


async def _run_workers(
    options: Options,
    config: Config,
    listener: socket.socket,
    start: Callable[..., Coroutine[Any, Any, int]],
) -> int:
    async with Workers(
        options.workers,
        listener,
        application=settings.ASGI_APPLICATION,
        server=options.server,
        environment=environment(options),
        config=config,
    ) as workers:
        return await start(api=workers, lifespan=workers)


def _sglang_engine(
    options: Options, config: Config, until_ready: ExitStack, say: Callable[[str], None]
) -> EngineProcess:
    command = ready_sglang(options, config, until_ready, say)
    return EngineProcess(
        command.argv,
        environment=command.environment,
        cwd=Path.cwd(),  # where paths among its flags lead from
        secrets=command.secrets,
        private=command.private,
    )


def _embedded_engine(config: Config, port: int) -> EngineProcess:
    from backend.embedded.memory import require_memory
    from backend.embedded.weights import WeightsError, locate

    try:
        if config.model is None:  # the profile says nothing about another model's needs
            require_memory(config)
        weights = locate(config)
    except WeightsError as error:
        raise LaunchError(str(error)) from None
    command = embedded_command(config, weights, port=port)
    return EngineProcess(
        command.argv,
        environment=command.environment,
        cwd=PROJECT_ROOT,
        secrets=command.secrets,
    )


def _warnings(options: Options, config: Config) -> list[str]:
    warnings = []
    if not options.engine_only and not is_loopback(options.host) and config.api_key is None:
        warnings.append(
            f"the API listens on {options.host} without a key: anyone who reaches it may use it. "
            "Set OPENJEV_API_KEY to require one."
        )
    if options.sglang_python and config.backend_api_key and not checks_keys(config):
        warnings.append(
            "OPENJEV_BACKEND_API_KEY protects nothing, because SGLang's Rust front checks no key: "
            "every user of this machine can reach the engine. Use --frontend python."
        )
    given = os.environ.get("OPENJEV_BACKEND_URL")
    if options.connect is None and given and given.rstrip("/") != config.backend_url:
        warnings.append(
            "OPENJEV_BACKEND_URL has no effect, because this command starts its own engine. Use "
            "--connect URL for one that runs already."
        )
    return warnings


def _reachable(host: str) -> str:
    """An address under which a server that listens on `host` answers from here."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host.strip("[]"))
        if address.is_unspecified:
            return "127.0.0.1" if address.version == 4 else "::1"
    return host


def _address(host: str, port: int) -> str:
    bare = host.strip("[]")
    return f"http://[{bare}]:{port}" if ":" in bare else f"http://{bare}:{port}"
