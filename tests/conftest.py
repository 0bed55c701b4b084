"""Fixtures that more than one package needs."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backend.config import load_config
from backend.embedded.weights import locate
from tests.support.fake_engine import FakeEngine, serve_fake_engine
from tests.support.tiny_gguf import write_tiny_gguf

START_SECONDS = 60.0


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    """Poll `/health` until it answers 200; fail when the process ends or time runs out."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the process ended with {process.returncode}"
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.05)
    pytest.fail(f"{url} was not healthy within {START_SECONDS:g} s")


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a tiny random Qwen2-family model."""
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def light_weights() -> Path:
    """The path of the light profile's real weights, fetched if need be (mark tests `model`)."""
    wanted = {"OPENJEV_PROFILE": "embedded-0.5b", "OPENJEV_MODEL": ""}
    return locate(load_config({**os.environ, **wanted})[0])


@contextmanager
def running_engine(gguf: Path, port: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start the embedded engine on a tiny model; give its address, healthy soon, and its process.

    At the end it is stopped, even if a test has left it paused.
    """
    command = [sys.executable, "-m", "backend.embedded", "--gguf", str(gguf)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny/random"]
    command += ["--context-length", "8192", "--cache-bytes", str(2**27)]
    process = subprocess.Popen(command, cwd=Path(__file__).parent.parent)
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="session")
def tiny_engine(tiny_gguf: Path) -> Iterator[str]:
    """The address of a running embedded engine on the tiny model (mark such tests `process`)."""
    with running_engine(tiny_gguf, free_port()) as (url, process):
        wait_until_healthy(url, process)
        yield url


@pytest.fixture
async def fake_engine() -> AsyncIterator[FakeEngine]:
    """A scriptable stand-in for SGLang, served on the test's own loop."""
    async with serve_fake_engine(FakeEngine()) as engine:
        yield engine
