"""The command line of `runbackend`, the settings it leads to, and what of it contradicts itself.

Applied before anything is looked at or started; the command itself only parses.
"""

import os
from dataclasses import dataclass

from django.conf import settings

from backend.config import Config, load_config
from backend.launch import LaunchError, engine_url
from backend.profiles import DEFAULT_SGLANG_PROFILE


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
        server: serves the API; one of `backend.serving.servers.SERVERS`.
        workers: processes that serve the API.
        print_command: show how the engine would be started, and start nothing.
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
    server: str = "daphne"
    workers: int = 1
    print_command: bool = False
    sglang_flags: tuple[str, ...] = ()


def environment(options: Options) -> dict[str, str]:
    """The environment variables, with what the command line says instead of some of them.

    Raises:
        LaunchError: `--connect` is empty.
    """
    url = engine_url(options.backend_port) if options.connect is None else options.connect
    if not url:  # as a variable it would count as unset
        raise LaunchError("--connect is empty. It must be the http or https address of an engine.")
    environ = {**os.environ, "OPENJEV_BACKEND_URL": url}
    if options.sglang_python is not None and not environ.get("OPENJEV_PROFILE"):
        environ["OPENJEV_PROFILE"] = DEFAULT_SGLANG_PROFILE
    if options.profile is not None:
        environ["OPENJEV_PROFILE"] = options.profile
    if options.frontend is not None:
        environ["OPENJEV_FRONTEND"] = options.frontend
    return environ


def configure(options: Options) -> Config:
    """Apply the command line to the settings, for everything in this process.

    Raises:
        LaunchError: `--connect` is no address.
    """
    config, problems = load_config(environment(options))
    for problem in problems:
        if problem.variable == "OPENJEV_BACKEND_URL" and problem.fatal:
            raise LaunchError(problem.message.replace(problem.variable, "--connect", 1))
    settings.OPENJEV = config
    settings.OPENJEV_PROBLEMS = problems
    return config


def require_consistent(options: Options, config: Config) -> None:
    """Check that the options make sense together and with the profile.

    Raises:
        LaunchError: they do not.
    """
    is_sglang = config.selected.engine == "sglang"
    if options.connect is None:
        if is_sglang and options.sglang_python is None and not options.print_command:
            raise LaunchError(
                f"The profile {config.profile} needs SGLang. Name the Python it is installed for "
                "with --sglang-python PATH, or the address of one that runs with --connect URL."
            )
        if not is_sglang and options.sglang_python is not None:
            raise LaunchError(
                f"The profile {config.profile} is not for SGLang. Leave --sglang-python out, or "
                f"choose another with --profile, such as {DEFAULT_SGLANG_PROFILE}."
            )
        if options.port == options.backend_port and not options.engine_only:
            raise LaunchError(
                f"API and engine cannot both listen on port {options.port}. Choose another --port "
                "or --backend-port."
            )
    elif options.sglang_python is not None or options.print_command:
        raise LaunchError(
            "With --connect nothing is started. Leave --sglang-python and --print-command out, or "
            "leave --connect out."
        )
    starts_sglang = is_sglang and options.connect is None
    if not starts_sglang and (options.frontend is not None or options.sglang_flags):
        raise LaunchError(
            "--frontend and what follows two dashes are for an SGLang that is started here. Add "
            "--sglang-python PATH, or leave them out."
        )
    if options.workers > 1 and options.engine_only:
        raise LaunchError(
            "With --engine-only nothing serves the API. Leave --workers out, or --engine-only."
        )
    if options.workers > config.max_concurrent_branches:
        raise LaunchError(
            f"Each of {options.workers} workers needs one engine call at least, but "
            f"OPENJEV_MAX_CONCURRENT_BRANCHES is {config.max_concurrent_branches}. Raise it, or "
            "choose fewer --workers."
        )
