"""Fixtures for the command as a process."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.support.running import Ports, Running


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Start commands, which are ended with the test: arguments, options, environment."""
    running: list[Running] = []

    def start(argv: Sequence[str], *options: object, **environ: str) -> Running:
        command = Running([*argv, *map(str, options)], environ)
        running.append(command)
        return command

    yield start
    for command in running:
        command.stop()


@pytest.fixture
def ports() -> Ports:
    """Free ports for API and engine."""
    return Ports()
