"""Fixtures for the engine's parts."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backend.config import Config, load_config
from backend.embedded import weights
from backend.embedded.model import Model
from backend.embedded.threads import ComputePool, single_threaded_blas
from backend.profiles import PROFILES
from tests.support.small_weights import FILE


@pytest.fixture(scope="session")
def pool() -> Iterator[ComputePool]:
    """Two threads, whatever the machine has: results must not depend on it."""
    single_threaded_blas()
    pool = ComputePool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def tiny_model(tiny_gguf: Path, pool: ComputePool) -> Model:
    """The tiny model in memory."""
    return Model(tiny_gguf, pool)


@pytest.fixture(scope="session")
def load(pool: ComputePool) -> Callable[[Path], Model]:
    """Load another model with the same threads."""
    return lambda path: Model(path, pool)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Settings of a profile whose weights are the small file."""
    profile = dataclasses.replace(PROFILES["embedded"], weights=FILE)
    monkeypatch.setitem(PROFILES, "embedded", profile)
    monkeypatch.setattr(weights, "_verified", {})
    settings, problems = load_config({"OPENJEV_WEIGHTS_DIR": str(tmp_path / "weights")})
    assert not problems
    return settings
