"""The command for the engine that a start needs: made ready to run, or only told.

Making it ready may fetch files and asks the interpreter for its SGLang; telling it does neither,
so that it works on any machine. Neither starts an engine.
"""

import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from backend.checkpoint import expected_directory, is_pinned, tokenizer_directory
from backend.config import Config
from backend.errors import TokenizerError
from backend.launch import EngineCommand, LaunchError, embedded_command
from backend.options import Options
from backend.sglang.command import sglang_command
from backend.sglang.interpreter import TESTED_VERSION, installed_version, interpreter
from backend.sglang.key import checks_keys, key_file

_HIDDEN = "***"
_ANY_PYTHON = "PATH_TO_PYTHON"


@contextmanager
def _stopping_the_start() -> Iterator[None]:
    try:
        yield
    except TokenizerError as error:
        raise LaunchError(str(error)) from None


@_stopping_the_start()
def ready_sglang(
    options: Options, config: Config, until_ready: ExitStack, say: Callable[[str], None]
) -> EngineCommand:
    """How to start SGLang, with everything it needs in place. Blocks.

    Args:
        options: the command line; `sglang_python` is set.
        config: the settings.
        until_ready: closed when the engine is ready, or has ended before.
        say: tells the person who started it; one line.

    Raises:
        LaunchError: something it needs cannot be had.
    """
    python = interpreter(options.sglang_python or "")
    _sglang(options, config, python, tokenizer="")  # a flag that is refused is told first
    version = installed_version(python)
    if version != TESTED_VERSION:
        say(f"Warning: SGLang {version} is not {TESTED_VERSION}, with which OpenJev is tested.")
    tokenizer = tokenizer_directory(config)
    if not is_pinned(config):
        say(
            f"Warning: {config.model} is not pinned, so another start may serve other weights. Set "
            "OPENJEV_REVISION to a commit."
        )
    say(f"SGLang  {version}, {config.frontend} front, {python}")
    key = until_ready.enter_context(key_file(config))
    return _sglang(options, config, python, tokenizer=str(tokenizer), key_file=key)


@_stopping_the_start()
def foretold(options: Options, config: Config) -> EngineCommand:
    """How the engine would be started, as far as this machine can tell.

    Raises:
        LaunchError: it would not be.
    """
    if config.selected.engine == "embedded":
        weights = config.selected.weights
        kept = config.weights_dir / weights.filename if weights else config.weights_dir
        path = Path(config.model).expanduser() if config.model else kept
        return embedded_command(config, path, port=options.backend_port)
    given = os.path.expanduser(options.sglang_python or _ANY_PYTHON)
    python = Path(shutil.which(given) or given)
    tokenizer = expected_directory(config) or config.model
    key = Path(_HIDDEN) if checks_keys(config) else None
    return _sglang(options, config, python, tokenizer=str(tokenizer), key_file=key)


def shell_text(command: EngineCommand, environ: Mapping[str, str] = os.environ) -> str:
    """Write a command for a POSIX shell, with what it changes in `environ`; secrets as `***`.

    Args:
        command: of an engine.
        environ: the environment that it was made from.
    """
    words = ["env"]
    words += [f"-u {name}" for name in environ if name not in command.environment]
    for name, value in sorted(command.environment.items()):
        if value != environ.get(name):
            words.append(_assignment(name, value, environ.get(name)))
    for number, argument in enumerate(command.argv):
        for secret in command.secrets:
            argument = argument.replace(secret, _HIDDEN)
        if number == 0 or argument.startswith("--"):
            words.append(shlex.quote(argument))
        else:
            words[-1] += f" {shlex.quote(argument)}"
    return " \\\n  ".join(words)


def _assignment(name: str, value: str, present: str | None) -> str:
    if name == "PATH" and present and value.endswith(present):
        return f'PATH={shlex.quote(value.removesuffix(present))}"$PATH"'
    return f"{name}={shlex.quote(value)}"


def _sglang(
    options: Options,
    config: Config,
    python: Path,
    *,
    tokenizer: str,
    key_file: Path | None = None,
) -> EngineCommand:
    return sglang_command(
        config,
        python=python,
        tokenizer=tokenizer,
        port=options.backend_port,
        extra=options.sglang_flags,
        key_file=key_file,
    )
