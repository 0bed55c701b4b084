"""How SGLang learns its key: by a file, because every user of a machine can read a command line."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp

from backend.config import Config
from backend.launch import LaunchError


def checks_keys(config: Config) -> bool:
    """Whether the SGLang that is started asks for a key; its Rust front never does."""
    return config.backend_api_key is not None and config.frontend == "python"


@contextmanager
def key_file(config: Config) -> Iterator[Path | None]:
    """A file that gives SGLang its key, readable by this user only.

    SGLang reads it at its start and never again: leave the context once it answers. The engine's
    keeper removes it as well (`EngineCommand.private`), for a process that is killed before it
    gets there; only a kill in the moment before the keeper runs leaves the file.

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
    descriptor, name = mkstemp(prefix="openjev-", suffix=".yaml")
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump({"api-key": config.backend_api_key}, file)
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)
