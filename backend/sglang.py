"""How to start SGLang for a profile: its interpreter, its command line, its environment.

Facts about SGLang 0.5.19 that shape a start belong here. It must never put a key into the argument
list, nor hand on the public API's.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from backend.checkpoint import local_directory
from backend.config import PREFIX, Config
from backend.launch import CONTEXT_MARGIN, ENGINE_HOST, EngineCommand, LaunchError
from backend.sglang_flags import FlagRefused, Flags, arguments, read_flags, require_harmless

TESTED_VERSION = "0.5.19"
# Far more than CONTEXT_MARGIN, which is the least: it keeps a round number round.
_AMPLE_CONTEXT_MARGIN = 256
_ASK_SECONDS = 60.0
_ASK = """
import importlib.metadata
try:
    print(importlib.metadata.version("sglang"))
except importlib.metadata.PackageNotFoundError:
    print()
"""
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
    # One more is answered 503 instead of waiting. On the Rust front it would never be answered.
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


def interpreter(given: str) -> Path:
    """The Python that `--sglang-python` names, without following links out of its environment.

    Raises:
        LaunchError: there is none.
    """
    found = shutil.which(os.path.expanduser(given))
    if found is None:
        inside = Path(given, "bin", "python")
        hint = f" Did you mean {inside}?" if inside.is_file() else ""
        raise LaunchError(
            f"--sglang-python is {given!r}, which is no program that can be run.{hint} Name the "
            "Python interpreter of the environment SGLang is installed in."
        )
    return Path(os.path.abspath(found))


def installed_version(python: Path) -> str:
    """The version of SGLang that `python` would run. Starts it for a moment.

    Raises:
        LaunchError: it is no Python, or has no SGLang.
    """
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own interpreter
            [str(python), "-c", _ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchError(
            f"--sglang-python is {python}, which does not work as a Python interpreter: "
            f"{_failure(error)}. Name the one of the environment SGLang is installed in."
        ) from None
    # the last line: what an environment runs at every start may print, too
    version = "".join(answer.stdout.splitlines()[-1:])
    if not version:
        raise LaunchError(
            f"The Python at {python} has no SGLang. Install it there ({python} -m pip install "
            f"sglang=={TESTED_VERSION}), or name another with --sglang-python."
        )
    return version


def _failure(error: OSError | subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        said = error.stderr.strip().splitlines()[-1:]
        return " ".join([f"it ended with exit code {error.returncode},", *(said or ["silent"])])
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it gave no answer within {_ASK_SECONDS:g} seconds"
    return str(error)


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
        require_harmless(given)
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
    )


def checks_keys(config: Config) -> bool:
    """Whether the SGLang that is started asks for a key; its Rust front never does."""
    return config.backend_api_key is not None and config.frontend == "python"


@contextmanager
def key_file(config: Config) -> Iterator[Path | None]:
    """A file that gives SGLang its key, readable by this user only, while needed.

    Raises:
        LaunchError: SGLang cannot read such a key.
    """
    if not checks_keys(config):
        yield None
        return
    if str(config.backend_api_key).startswith("-"):
        raise LaunchError(
            "OPENJEV_BACKEND_API_KEY begins with '-', which SGLang takes for a flag. Choose "
            "another key."
        )
    with TemporaryDirectory(prefix="openjev-") as directory:
        path = Path(directory, "sglang.yaml")
        path.touch(mode=0o600)
        path.write_text(json.dumps({"api-key": config.backend_api_key}))
        yield path


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
