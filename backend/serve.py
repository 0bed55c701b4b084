"""What `runbackend` does: settle the settings, look before starting anything, then run it all.

Everything that can be known to fail is found out here, cheapest first, before a process starts or
a byte is fetched. The processes themselves are `backend.runtime`'s business.
"""

import asyncio
import ipaddress
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.utils.module_loading import import_string

from backend.checkpoint import is_pinned, tokenizer_directory
from backend.config import Config, load_config
from backend.errors import TokenizerError
from backend.launch import (
    PROJECT_ROOT,
    LaunchError,
    embedded_command,
    engine_url,
    require_free,
)
from backend.lifespan import Lifespan
from backend.profiles import DEFAULT_SGLANG_PROFILE
from backend.runtime import run
from backend.sglang import TESTED_VERSION, installed_version, interpreter, key_file, sglang_command
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
        sglang_python: the Python that has SGLang, to start that.
        frontend: overrides `OPENJEV_FRONTEND`.
        sglang_flags: flags for SGLang that replace or add to ours.
    """

    profile: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    backend_port: int = 30000
    connect: str | None = None
    engine_only: bool = False
    sglang_python: str | None = None
    frontend: str | None = None
    sglang_flags: tuple[str, ...] = ()


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
    if options.connect is None:
        _require_startable(options, config)
    if not options.engine_only:  # before the engine's, which people know less about
        require_free(options.host, options.port, "--port")
    if options.connect is None:
        _require_another_port(options)
        require_free("127.0.0.1", options.backend_port, "--backend-port")
    for warning in _warnings(options, config):
        say(f"Warning: {warning}")
    say(f"Model   {config.served_model_name} (profile {config.profile})")
    with ExitStack() as resources:
        engine = None
        if options.sglang_python is not None:
            engine = _sglang_engine(options, config, resources, say)
        elif options.connect is None:
            engine = _embedded_engine(config, options.backend_port)
        say(f"Engine  {config.backend_url}")
        if not options.engine_only:
            return _serve_api(options, config, engine, say)
        return asyncio.run(
            run(
                engine=engine,
                api=None,
                lifespan=None,
                url=config.backend_url,
                config=config,
                say=say,
            )
        )


def configure(options: Options) -> Config:
    """Apply the command line to the settings, for everything in this process.

    Raises:
        LaunchError: `--connect` is no address.
    """
    url = options.connect or engine_url(options.backend_port)
    environ = {**os.environ, "OPENJEV_BACKEND_URL": url}
    if options.sglang_python is not None and not environ.get("OPENJEV_PROFILE"):
        environ["OPENJEV_PROFILE"] = DEFAULT_SGLANG_PROFILE
    if options.profile is not None:
        environ["OPENJEV_PROFILE"] = options.profile
    if options.frontend is not None:
        environ["OPENJEV_FRONTEND"] = options.frontend
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
            url=_address(_reachable(options.host), options.port),
            config=config,
            say=say,
        )
    )


def _require_another_port(options: Options) -> None:
    if options.port == options.backend_port and not options.engine_only:
        raise LaunchError(
            f"API and engine cannot both listen on port {options.port}. Choose another --port or "
            "--backend-port."
        )


def _require_startable(options: Options, config: Config) -> None:
    is_sglang = config.selected.engine == "sglang"
    if is_sglang and options.sglang_python is None:
        raise LaunchError(
            f"The profile {config.profile} needs SGLang. Name the Python it is installed for with "
            "--sglang-python PATH, or the address of one that runs with --connect URL."
        )
    if not is_sglang and options.sglang_python is not None:
        raise LaunchError(
            f"The profile {config.profile} is not for SGLang. Leave --sglang-python out, or choose "
            f"another with --profile, such as {DEFAULT_SGLANG_PROFILE}."
        )


def _sglang_engine(
    options: Options, config: Config, resources: ExitStack, say: Callable[[str], None]
) -> EngineProcess:
    python = interpreter(options.sglang_python or "")
    version = installed_version(python)
    if version != TESTED_VERSION:
        say(f"Warning: SGLang {version} is not {TESTED_VERSION}, with which OpenJev is tested.")
    try:
        tokenizer = tokenizer_directory(config)
        if not is_pinned(config):
            say(f"Warning: {config.model} is not pinned; what the hub serves as it may change.")
    except TokenizerError as error:
        raise LaunchError(str(error)) from None
    command = sglang_command(
        config,
        python=python,
        tokenizer=str(tokenizer),
        port=options.backend_port,
        extra=options.sglang_flags,
        key_file=resources.enter_context(key_file(config)),
    )
    return EngineProcess(
        command.argv, environment=command.environment, cwd=Path.cwd(), secrets=command.secrets
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
