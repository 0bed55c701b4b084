"""The checkpoint, the engines and what they are compared with. An engine starts in about 40 s."""

import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from backend.client import EngineClient
from tests.sglang.checkpoint import write_checkpoint
from tests.sglang.programs import (
    ENGINE_KEY,
    FRONTS,
    STAND_INS,
    RunningSGLang,
    sglang,
    sglang_python,
)

Reference = Callable[[list[list[int]]], list[list[float]]]
MAX_QUEUED = 32
_REFERENCE = Path(__file__).with_name("reference.py")


@pytest.fixture(scope="session")
def checkpoint(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random model as a checkpoint directory."""
    return write_checkpoint(tiny_gguf, tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session", params=FRONTS)
def engine(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[RunningSGLang]:
    """A running SGLang; every test that uses it runs on both fronts."""
    # the Rust front never answers a call that finds the queue full
    queue = ("--max-queued-requests", str(MAX_QUEUED)) if request.param == "python" else ()
    with sglang(checkpoint, request.param, *queue) as running:
        yield running


@pytest.fixture
async def client(engine: RunningSGLang) -> AsyncIterator[EngineClient]:
    """A client of it that knows nothing of it yet, apart from the key."""
    client = EngineClient(engine.url, api_key=ENGINE_KEY)
    yield client
    await client.aclose()


@pytest.fixture(scope="session")
def reference(checkpoint: Path) -> Reference:
    """Log-probabilities of the token after each prompt, by `transformers`."""

    def ask(prompts: list[list[int]]) -> list[list[float]]:
        done = subprocess.run(
            [sglang_python(), str(_REFERENCE), str(checkpoint)],
            input=json.dumps(prompts),
            env={**os.environ, **STAND_INS},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: list[list[float]] = json.loads(done.stdout)
        return found

    return ask
