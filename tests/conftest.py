"""Fixtures that more than one package needs."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from backend.config import load_config
from backend.embedded.weights import locate
from tests.support.fake_engine import FakeEngine, serve_fake_engine
from tests.support.loopback import free_port, running_engine, wait_until_healthy
from tests.support.tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a tiny random Qwen2-family model."""
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def light_weights() -> Path:
    """The path of the light profile's real weights, fetched if need be (mark tests `model`)."""
    wanted = {"OPENJEV_PROFILE": "embedded-0.5b", "OPENJEV_MODEL": ""}
    return locate(load_config({**os.environ, **wanted})[0])


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
