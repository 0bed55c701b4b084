"""The Python that has SGLang: found, and asked which version it would run.

It must never be made to import SGLang, which takes many seconds.
"""

import os
import shutil
import subprocess
from pathlib import Path

from backend.launch import LaunchError

TESTED_VERSION = "0.5.19"
_ASK_SECONDS = 60.0
_ASK = """
import importlib.metadata
try:
    print(importlib.metadata.version("sglang"))
except importlib.metadata.PackageNotFoundError:
    print()
"""


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
