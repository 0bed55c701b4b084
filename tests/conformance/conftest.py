"""The whole product for clients we did not write: on the tiny model, and on a scripted engine."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.support.fake_engine import FakeEngine, serve_fake_engine
from tests.support.loopback import free_port
from tests.support.served import Served, serve, tiny_settings
from tests.support.tiny_gguf import write_tiny_gguf

START_SECONDS = 60.0

Serve = Callable[..., Served]
Connect = Callable[..., AbstractAsyncContextManager[tuple[Served, FakeEngine]]]


@pytest.fixture(scope="session")
def default_product(tmp_path_factory: pytest.TempPathFactory, tiny_gguf: Path) -> Iterator[Served]:
    """`runbackend` on the tiny random model with the default limits and no key."""
    with serve(
        tmp_path_factory.mktemp("conformance"),
        port=free_port(),
        backend_port=free_port(),
        seconds=START_SECONDS,
        environ=tiny_settings(tiny_gguf),
    ) as served:
        yield served


@pytest.fixture
def hurried_product(tmp_path: Path, tiny_gguf: Path) -> Iterator[Served]:
    """`runbackend` on the tiny random model, which gives up a request after one second."""
    hurry = "import runpy; from backend.serving import daphne_channel;"
    hurry += "daphne_channel.REQUEST_SECONDS = 1.0"
    with serve(
        tmp_path,
        port=free_port(),
        backend_port=free_port(),
        seconds=START_SECONDS,
        environ=tiny_settings(tiny_gguf),
        program=("-c", f"{hurry}; runpy.run_path('manage.py', run_name='__main__')"),
    ) as served:
        yield served


@pytest.fixture(scope="session")
def wordy_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random model, which writes the options of jevcompat in as few tokens as a real one.

    Spelled out, 255 of them are too many tokens for the default limit.
    """
    words = (" Tickets", " routed", " to", " queue")
    return write_tiny_gguf(tmp_path_factory.mktemp("wordy") / "wordy.gguf", words=words)


@pytest.fixture
def serve_with(tmp_path: Path, wordy_gguf: Path) -> Iterator[Serve]:
    """Start `runbackend` on the tiny random model with further settings, for one test."""
    with ExitStack() as running:

        def start(**settings: str) -> Served:
            return running.enter_context(
                serve(
                    tmp_path,
                    port=free_port(),
                    backend_port=free_port(),
                    seconds=START_SECONDS,
                    environ=tiny_settings(wordy_gguf) | settings,
                )
            )

        yield start


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory, tiny_gguf: Path) -> Connect:
    """Start `runbackend` on a scripted engine, which is served by the loop of the test."""

    @asynccontextmanager
    async def start(**settings: str) -> AsyncIterator[tuple[Served, FakeEngine]]:
        engine = FakeEngine(model="tiny/random", context_length=16_384)
        async with serve_fake_engine(engine):
            with ExitStack() as running:
                # in a thread: the product asks the engine while it starts
                served = await asyncio.to_thread(
                    running.enter_context,
                    serve(
                        tmp_path_factory.mktemp("connected"),
                        port=free_port(),
                        backend_port=free_port(),
                        seconds=START_SECONDS,
                        environ=tiny_settings(tiny_gguf) | settings,
                        connect=engine.url,
                    ),
                )
                yield served, engine

    return start
