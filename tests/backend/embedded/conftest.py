"""Fixtures for the engine's parts."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backend.embedded.model import Model
from backend.embedded.threads import ComputePool, single_threaded_blas


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
