"""What `runbackend` does: settle the settings, look before starting anything, then run it all.

Everything that can be known to fail is found out here, cheapest first, before a process starts or
a byte is fetched. The processes themselves are `backend.runtime`'s business.
"""

import asyncio
import ipaddress
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from django.conf import settings
from django.utils.module_loading import import_string

from backend.config import Config, load_config
from backend.launch import (
    PROJECT_ROOT,
    LaunchError,
    embedded_command,
    engine_url,
    require_free,
)
from backend.lifespan import Lifespan
from backend.runtime import run
from backend.supervisor import EngineProcess

# an evaluation times out by itself; Daphne's own limit is for an application that forgets to
_HTTP_TIMEOUT_MARGIN = 30.0


@dataclass(frozen=True, slots=True)
class Options:
    """The command line.

    Attributes:
        profile: overrides `OPENJEV_PROFILE`.
        host: address the API listens on.
        port: port of the API.
        backend_port: port of an engine that is started.
        connect: address of an engine that runs already; none is started then.
        engine_only: no API.
    """

    profile: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    backend_port: int = 30000
    connect: str | None = None
    engine_only: bool = False


def serve(options: Options, *, say: Callable[[str], None], check: Callable[[], object]) -> int:
    """Run engine and API until something ends them.

    Args:
        options: the command line.
        say: tells the person who started it; one line.
        check: runs Django's system checks and raises where one fails.

    Returns:
        The exit code, as `backend.runtime.run` describes.

    Raises:
        LaunchError: nothing was started, for the reason given.
    """
    config = configure(options)
    check()
    engine = None
    if options.connect is None:
        _require_startable(config)
    if not options.engine_only:  # before the engine's, which people know less about
        require_free(options.host, options.port, "--port")
    if options.connect is None:
        _require_another_port(options)
        require_free("127.0.0.1", options.backend_port, "--backend-port")
    for warning in _warnings(options, config):
        say(f"Warning: {warning}")
    say(f"Model   {config.served_model_name} (profile {config.profile})")
    if options.connect is None:
        engine = _embedded_engine(config, options.backend_port)
    say(f"Engine  {config.backend_url}")
    if options.engine_only:
        return asyncio.run(
            run(
                engine=engine,
                api=None,
                lifespan=None,
                probe_url=config.backend_url,
                startup_timeout=config.startup_timeout,
                say=say,
            )
        )
    return _serve_api(options, config, engine, say)


def configure(options: Options) -> Config:
    """Apply the command line to the settings, for everything in this process.

    Raises:
        LaunchError: `--connect` is no address.
    """
    url = options.connect or engine_url(options.backend_port)
    environ = {**os.environ, "OPENJEV_BACKEND_URL": url}
    if options.profile is not None:
        environ["OPENJEV_PROFILE"] = options.profile
    config, problems = load_config(environ)
    for problem in problems:
        if problem.variable == "OPENJEV_BACKEND_URL" and problem.fatal:
            raise LaunchError(problem.message.replace(problem.variable, "--connect", 1))
    settings.OPENJEV = config
    settings.OPENJEV_PROBLEMS = problems
    return config


def _serve_api(
    options: Options, config: Config, engine: EngineProcess | None, say: Callable[[str], None]
) -> int:
    # not before the settings are final: the application reads them, and Daphne installs a reactor
    from backend.api_server import ApiServer

    application = import_string(settings.ASGI_APPLICATION)
    lifespan = Lifespan(application)
    api = ApiServer(
        application,
        host=options.host,
        port=options.port,
        http_timeout=config.request_timeout + _HTTP_TIMEOUT_MARGIN,
        max_body_bytes=config.max_body_bytes,
    )
    say(f"API     {_address(options.host, options.port)} (starting)")
    return api.run(
        lambda: run(
            engine=engine,
            api=api,
            lifespan=lifespan,
            probe_url=_address(_reachable(options.host), options.port),
            startup_timeout=config.startup_timeout,
            say=say,
        )
    )


def _require_another_port(options: Options) -> None:
    if options.port == options.backend_port and not options.engine_only:
        raise LaunchError(
            f"API and engine cannot both listen on port {options.port}. Choose another --port or "
            "--backend-port."
        )


def _require_startable(config: Config) -> None:
    if config.selected.engine != "embedded":
        raise LaunchError(
            f"The profile {config.profile} needs SGLang, which this version does not start. Start "
            f"SGLang yourself, then: runbackend --profile {config.profile} --connect "
            "http://127.0.0.1:30000 (its address)."
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
    if not options.engine_only and not _is_loopback(options.host) and config.api_key is None:
        warnings.append(
            f"the API listens on {options.host} without a key: anyone who reaches it may use it. "
            "Set OPENJEV_API_KEY to require one."
        )
    given = os.environ.get("OPENJEV_BACKEND_URL")
    if options.connect is None and given and given.rstrip("/") != config.backend_url:
        warnings.append(
            "OPENJEV_BACKEND_URL has no effect, because this command starts its own engine. Use "
            "--connect URL for one that runs already."
        )
    return warnings


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


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
