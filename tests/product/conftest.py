"""The product as users meet it: one fixture per model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.loopback import free_port
from tests.support.served import Served, serve, tiny_settings


@pytest.fixture(scope="session")
def tiny_environ(tiny_gguf: Path) -> dict[str, str]:
    """The settings that put the tiny random model behind the product."""
    return tiny_settings(tiny_gguf)


@pytest.fixture
def tiny_product(tmp_path: Path, tiny_environ: dict[str, str]) -> Iterator[Served]:
    """`runbackend` on the tiny random model, started anew for each test that may kill it."""
    ports = {"port": free_port(), "backend_port": free_port()}
    with serve(tmp_path, **ports, seconds=60, environ=tiny_environ) as served:
        yield served


@pytest.fixture(scope="session")
def tiny_shared(
    tmp_path_factory: pytest.TempPathFactory, tiny_environ: dict[str, str]
) -> Iterator[Served]:
    """`runbackend` on the tiny random model, for tests that leave it as it is."""
    ports = {"port": free_port(), "backend_port": free_port()}
    where = tmp_path_factory.mktemp("tiny-product")
    with serve(where, **ports, seconds=60, environ=tiny_environ) as served:
        yield served


@pytest.fixture(scope="session")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`runbackend` on the default profile's real weights (mark such tests `model`)."""
    ports = {"port": free_port(), "backend_port": free_port()}
    where = tmp_path_factory.mktemp("product")
    with serve(where, **ports, seconds=1200, environ={}) as served:
        yield served
