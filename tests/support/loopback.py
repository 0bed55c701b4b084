"""Programs of ours on loopback: a port for them, the embedded engine, and the wait for either."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_healthy(
    url: str, process: subprocess.Popen[bytes], *, seconds: float = 60.0, log: Path | None = None
) -> None:
    """Poll `/health` until it answers 200; fail when the process ends or time runs out.

    Args:
        url: of the server.
        process: which serves.
        seconds: how long to wait.
        log: what it has written; shown where it fails.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    why = f"{url} was not healthy within {seconds:g} s"
    if process.returncode is not None:
        why = f"the process ended with {process.returncode}"
    pytest.fail(f"{why}\n{log.read_text()}" if log else why)


@contextmanager
def running_engine(gguf: Path, port: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start the embedded engine on a tiny model; give its address, healthy soon, and its process.

    At the end it is stopped, even if a test has left it paused.
    """
    command = [sys.executable, "-m", "backend.embedded", "--gguf", str(gguf)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny/random"]
    command += ["--context-length", "8192", "--cache-bytes", str(2**27)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(10)
