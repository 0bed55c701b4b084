"""Where the tokenizer of a checkpoint lies: a directory of one revision, the same for both sides.

The engine and the API must cut text into the same tokens, so both are given this directory. Fetches
the small text files of a hub model and never its weights, which are the engine's business.
"""

import os
import re
from functools import cache
from pathlib import Path

from backend.config import Config
from backend.errors import TokenizerError

# All that tokenizers, chat templates and processors are made of.
_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def local_directory(model: str) -> Path | None:
    """The checkpoint directory that `model` names; `None` for a hub id.

    Raises:
        TokenizerError: it names a file, or a path where nothing is.
    """
    path = Path(os.path.expanduser(model))
    if path.is_dir():
        return path.resolve()
    if path.is_file():
        raise TokenizerError(
            f"OPENJEV_MODEL is the file {path}. SGLang profiles need the directory of a "
            "checkpoint, or a hub id."
        )
    if model.startswith(("/", "~", ".")) or model.count("/") > 1:
        raise TokenizerError(
            f"OPENJEV_MODEL is {model!r}, but there is no such directory. Name the directory of a "
            "checkpoint, or a hub id such as Qwen/Qwen3-8B."
        )
    return None


def is_pinned(config: Config) -> bool:
    """Whether the configured checkpoint is always the same: a commit of a hub model, or local."""
    if config.model is None or local_directory(config.model):
        return True
    return _COMMIT.fullmatch(config.revision or "") is not None


def tokenizer_directory(config: Config) -> Path:
    """The directory with the tokenizer of the configured model, fetched if need be. Blocks.

    Raises:
        TokenizerError: it cannot be had.
    """
    model = config.model or config.served_model_name
    return local_directory(model) or _fetched(model, config.revision)


def expected_directory(config: Config) -> Path | None:
    """Where `tokenizer_directory` is or will be; `None` where only the hub knows. Fetches nothing.

    Raises:
        TokenizerError: as `local_directory` does.
    """
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    model = config.model or config.served_model_name
    directory = local_directory(model)
    if directory or not is_pinned(config):
        return directory
    folder = repo_folder_name(repo_id=model, repo_type="model")
    return Path(HF_HUB_CACHE, folder, "snapshots", str(config.revision))


@cache  # a branch may move on while engine and API are starting
def _fetched(model: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(model, revision=revision, allow_patterns=list(_FILES))
    except Exception as error:  # it fails in dozens of ways, few of them documented
        at = f" at revision {revision}" if revision else ""
        raise TokenizerError(
            f"The tokenizer files of {model}{at} cannot be fetched from the model hub "
            f"({type(error).__name__}: {error}). Check OPENJEV_MODEL, OPENJEV_REVISION and the "
            "network (a gated model needs HF_TOKEN), or set OPENJEV_MODEL to a local directory."
        ) from error
    return Path(found)
