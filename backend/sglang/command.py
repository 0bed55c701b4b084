"""How to start SGLang for a profile: its command line and its environment.

Facts about SGLang 0.5.19 that shape a start belong here. It must never put a key into the argument
list, nor hand on the public API's.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from backend.checkpoint import local_directory
from backend.config import PREFIX, Config
from backend.launch import CONTEXT_MARGIN, ENGINE_HOST, EngineCommand, LaunchError
from backend.sglang.flags import FlagRefused, Flags, arguments, read_flags, require_harmless

# Far more than CONTEXT_MARGIN, which is the least: it keeps a round number round.
_AMPLE_CONTEXT_MARGIN = 256
# Twice as many as the calls that are in flight by default: recurrent state is kept for each.
_EVERY_MODEL = (
    *("--chunked-prefill-size", "8192"),
    *("--max-running-requests", "128"),
    "--enable-metrics",
    *("--log-level-http", "warning"),  # or every call is a line in the log
    # Its own warm-up asks for no log-probabilities. Where such a request meets one of ours in a
    # batch, SGLang dies (its issue 34719); our first calls warm it up just as well.
    "--skip-server-warmup",
)
_PYTHON_FRONT = (
    # one more is answered 503 instead of waiting
    *("--max-queued-requests", "512"),
)
# These give way to what the user's own environment says.
_ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONSAFEPATH": "1",  # the working directory holds packages of ours
    # After a fatal error it would wait for dumps, with its port open and requests hanging.
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS": "0",
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
    "SGLANG_REQUEST_STATE_WAIT_TIMEOUT": "1",  # how soon it notices that a caller has hung up
    "SGLANG_TIMEOUT_KEEP_ALIVE": "60",  # longer than our client keeps a connection
}


def sglang_command(
    config: Config,
    *,
    python: Path,
    tokenizer: str,
    port: int,
    extra: Sequence[str] = (),
    key_file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> EngineCommand:
    """How to start SGLang.

    Args:
        config: settings; the profile's flags come with it.
        python: the interpreter that has SGLang.
        tokenizer: directory of the tokenizer that the API uses, too.
        port: where it listens, on loopback.
        extra: flags that replace or add to ours, as on a command line.
        key_file: from `key_file`.
        environ: environment to start from; what is set there stays as it is.

    Raises:
        LaunchError: a flag in `extra` cannot be used.
    """
    try:
        given = read_flags(extra)
        require_harmless(given, frontend=config.frontend)
    except FlagRefused as refusal:
        raise LaunchError(str(refusal)) from None
    flags = _own_flags(config, tokenizer, port) | given
    _require_room(config, flags["--context-length"])
    if key_file is not None:
        flags["--config"] = (str(key_file),)
    return EngineCommand(
        # `sglang serve` would first ask the hub what kind of model this is
        argv=(str(python), "-m", "sglang.launch_server", *arguments(flags)),
        environment=_environment(config, python, environ),
        secrets=config.secrets,
        private=() if key_file is None else (key_file,),
    )


def _own_flags(config: Config, tokenizer: str, port: int) -> Flags:
    directory = local_directory(config.model or config.served_model_name)
    return read_flags(
        [
            *("--model-path", str(directory or config.model)),
            *(("--revision", config.revision) if config.revision and not directory else ()),
            *("--tokenizer-path", tokenizer),
            *("--served-model-name", config.served_model_name),
            *("--host", ENGINE_HOST),
            *("--port", str(port)),
            *("--context-length", str(config.max_input_tokens + _AMPLE_CONTEXT_MARGIN)),
            *_EVERY_MODEL,
            *(_PYTHON_FRONT if config.frontend == "python" else ()),
            *config.selected.sglang_flags,
        ]
    )


def _require_room(config: Config, context_length: Sequence[str]) -> None:
    needed = config.max_input_tokens + CONTEXT_MARGIN
    given = "".join(context_length)
    if given.isdecimal() and int(given) < needed:
        raise LaunchError(
            f"The SGLang flag --context-length is {given}, but inputs of OPENJEV_MAX_INPUT_TOKENS "
            f"({config.max_input_tokens}) need {needed}. Raise the one or lower the other."
        )


def _environment(config: Config, python: Path, environ: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in environ.items() if not name.startswith(PREFIX)}
    # as if its environment were activated: kernels are compiled with the tools beside it
    if python.is_absolute():
        path = (str(python.parent), environ.get("PATH", os.defpath))
        inherited["PATH"] = os.pathsep.join(path)
    return {
        **_ENVIRONMENT,
        **inherited,
        "SGLANG_RUST_SERVER": "1" if config.frontend == "rust" else "0",
        # Its /health would send a request without log-probabilities, too, and at any time.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
    }
