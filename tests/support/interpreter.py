"""A program that answers as a Python which has SGLang would, and never starts one."""

from pathlib import Path


def write_interpreter(path: Path, version: str = "0.5.19", started: str = "exit 1") -> Path:
    """Write it.

    Args:
        path: where.
        version: what it says is installed; nothing, where empty.
        started: shell text of what it does instead of starting SGLang.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then echo "{version}"; else {started}; fi\n')
    path.chmod(0o755)
    return path
