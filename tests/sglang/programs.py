"""The real SGLang on the CPU, started by itself, and what it takes to start it through us."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.loopback import free_port
from tests.support.running import ROOT, Running

FRONTS = ("python", "rust")
MODEL_NAME = "tiny/random"
ENGINE_KEY = "the-key-of-the-engine"
MAX_INPUT_TOKENS = 4096
CONTEXT_LENGTH = MAX_INPUT_TOKENS + 256
# Without an accelerator SGLang keeps a core busy while it idles unless it is told to sleep. Small
# chunks, because what is cancelled ends with the chunk that is being computed.
CPU_FLAGS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32"),
    *("--max-total-tokens", "60000", "--chunked-prefill-size", "1024", "--sleep-on-idle"),
)
START_SECONDS = 300.0
STAND_INS = {
    "PYTHONPATH": str(Path(__file__).resolve().parent / "stand_ins"),
    "HF_HUB_OFFLINE": "1",
}
_STARTED = "The server is fired up and ready to roll!"


def sglang_python() -> str:
    """The interpreter that has SGLang: the one `make test-sglang` installs, or `SGLANG_PYTHON`."""
    python = os.environ.get("SGLANG_PYTHON") or str(ROOT / ".venv-sglang/bin/python")
    if not Path(python).exists():
        pytest.fail(
            f"There is no {python}. `make test-sglang` makes one; SGLANG_PYTHON names another."
        )
    return python


def settings(checkpoint: Path, **more: str) -> dict[str, str]:
    """The settings that put the checkpoint behind the product."""
    return {
        "OPENJEV_PROFILE": "qwen3-8b",
        "OPENJEV_MODEL": str(checkpoint),
        "OPENJEV_SERVED_MODEL_NAME": MODEL_NAME,
        "OPENJEV_MAX_INPUT_TOKENS": str(MAX_INPUT_TOKENS),
        "OPENJEV_BACKEND_API_KEY": ENGINE_KEY,
        **more,
    }


def scheduler_of(command: Running) -> psutil.Process:
    """The process below `command` in which SGLang holds the model."""
    (found,) = [p for p in command.descendants() if "scheduler" in " ".join(p.cmdline())]
    return found


@dataclass(frozen=True)
class RunningSGLang:
    """An SGLang that somebody started by hand, with a key.

    Attributes:
        url: its address.
        front: which of its HTTP servers answers, `python` or `rust`.
        command: the process.
    """

    url: str
    front: str
    command: Running

    def scheduler(self) -> psutil.Process:
        """The process that holds the model."""
        return scheduler_of(self.command)


@contextmanager
def sglang(checkpoint: Path, front: str, *flags: str) -> Iterator[RunningSGLang]:
    """Run SGLang by itself, the way its own documentation says, with further `flags`."""
    port = str(free_port())
    argv = ["-m", "sglang.launch_server", "--model-path", str(checkpoint), "--port", port]
    argv += ["--served-model-name", MODEL_NAME, "--context-length", str(CONTEXT_LENGTH)]
    argv += ["--api-key", ENGINE_KEY, *CPU_FLAGS, *flags]
    environ = {**STAND_INS, "SGLANG_RUST_SERVER": "1" if front == "rust" else "0"}
    command = Running(argv, environ, python=sglang_python())
    try:
        # Not before its own warm-up is over: it sends a request without log-probabilities, and
        # SGLang dies where such a one meets one of ours in a batch.
        command.wait_for(_STARTED, START_SECONDS)
        yield RunningSGLang(f"http://127.0.0.1:{port}", front, command)
    finally:
        command.stop()
