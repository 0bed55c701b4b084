"""What the lines that an engine writes mean: their level, and how far its start has come.

Pure functions over text. The patterns are those of the embedded engine and of SGLang 0.5.19, whose
two fronts write in forms of their own; a line in no known form is an ordinary one.
"""

import logging
import re
from enum import Enum

# colours, and whatever else a terminal would obey
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_LEVELS = {name: getattr(logging, name) for name in ("DEBUG", "INFO", "WARNING", "ERROR")} | {
    "CRITICAL": logging.CRITICAL,
    "WARN": logging.WARNING,
}
# "[2026-11-30 00:30:03 TP0] ", "2026-11-30T00:30:03.593433Z "; the rank is worth keeping
_TIME = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ?([^\]]*)\] |\d{4}-\d\d-\d\dT[\d:.]+Z +")
_LEVEL = re.compile(rf"({'|'.join(_LEVELS)}):? +(?=\S)")
# written for every request: hundreds a second
_ROUTINE = re.compile(r'(?:Prefill|Decode) batch|.* - "[A-Z]+ \S+ HTTP/\d\.\d" 2\d\d')


class Phase(Enum):
    """A part of the start, in order; the value tells a person what is done in it."""

    WAITING = "waiting for the engine"
    STARTING = "starting the engine"
    DOWNLOADING = "downloading the weights"
    LOADING = "loading the weights"
    CAPTURING = "compiling kernels and capturing graphs"
    WARMING_UP = "warming up"
    CHECKING = "checking the model"


_RANK = re.compile(r"^(?:[A-Z]{2}\d+ )+")
_PHASES = (
    (Phase.DOWNLOADING, re.compile("Using model weights format")),
    # not at SGLang's "Load weight begin", after which it may first have to download them
    (
        Phase.LOADING,
        re.compile("Loading (?:weights from|safetensors|pt)|Multi-thread loading|Found local HF"),
    ),
    (
        Phase.CAPTURING,
        re.compile("Capture .* begin|Compiling|Try DeepGEMM|DeepGEMM warmup|Running FlashInfer"),
    ),
    (Phase.WARMING_UP, re.compile("Uvicorn running on|SGLANG_RUST_SERVER enabled")),
    (Phase.CHECKING, re.compile("The server is fired up|Engine ready")),
)


def read_line(line: str) -> tuple[int, str]:
    """Take a line apart.

    Args:
        line: as the engine wrote it.

    Returns:
        Its level, as `logging` counts, and its text without time, level and control characters.
        What is written for every request counts as `DEBUG`.
    """
    text = _CONTROL.sub("", line)
    rank = ""
    if stamp := _TIME.match(text):
        rank = f"{stamp[1]} " if stamp[1] else ""
        text = text[stamp.end() :]
    level = logging.INFO
    if word := _LEVEL.match(text):
        level = _LEVELS[word[1]]
        text = text[word.end() :]
    if _ROUTINE.match(text):
        level = min(level, logging.DEBUG)
    return level, rank + text


def phase_of(text: str) -> Phase | None:
    """Which phase of the start begins with this text; `None` where it does not say."""
    bare = _RANK.sub("", text)
    return next((phase for phase, begin in _PHASES if begin.match(bare)), None)


def tells_taken_port(text: str) -> bool:
    """Whether it says that the engine's port belongs to another server."""
    return "address already in use" in text.lower()
