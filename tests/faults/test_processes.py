"""The product as a process, with the public API on a socket, and a fake engine as its child."""

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.faults.outcomes import (
    BODY,
    BRANCHES,
    GONE,
    LATE_SECONDS,
    OUTCOMES,
    REQUEST_SECONDS,
    SILENT,
    Outcome,
    assert_discreet,
    assert_said,
)
from tests.support.fake_engine import Fault
from tests.support.running import TINY, Asking, Ports, Running, assert_gone
from tests.support.served import tiny_settings

pytestmark = pytest.mark.process

EVALUATIONS = 8
FLUCTUATION = 8
"""By how much what is held may differ: idle connections and threads come and go. A leak would be of
as many as there are faults."""


class Product:
    """A product that is ready.

    Attributes:
        command: the process.
        url: where it evaluates.
        api: a client of its public API.
    """

    def __init__(self, command: Running, ports: Ports) -> None:
        self.command = command
        self.url = f"http://127.0.0.1:{ports.api}/v1/systemone"
        self.api = httpx.Client(timeout=60)
        self._engine = httpx.Client(base_url=f"http://127.0.0.1:{ports.engine}", timeout=10)

    def evaluate(self) -> httpx.Response:
        """Post the evaluation."""
        return self.api.post(self.url, json=BODY)

    def script(self, **step: Any) -> int:
        """Direct the engine; return the number of calls that it is answering."""
        running: int = self._engine.post("/script", json=step).json()["running"]
        return running

    def until_running(self, calls: int) -> None:
        """Wait until the engine is answering so many calls."""
        deadline = time.monotonic() + 10
        while (running := self.script()) != calls:
            assert time.monotonic() < deadline, f"{running} calls, not {calls}"
            time.sleep(0.02)

    def hang_in_the_branches(self) -> list[Asking]:
        """Begin evaluations; return when the engine holds all their branches."""
        for number in range(1, BRANCHES + 1):
            self.script(fault="hang", suffix=f".{number:04d}")
        asked = [Asking("POST", self.url, json=BODY) for _ in range(EVALUATIONS)]
        self.until_running(EVALUATIONS * BRANCHES)
        return asked

    def holds(self) -> Mapping[str, int]:
        """What the process has that could leak."""
        process = psutil.Process(self.command.process.pid)
        states = [connection.status for connection in process.net_connections("tcp")]
        return {
            "files": process.num_fds(),
            "threads": process.num_threads(),
            "processes": len(process.children(recursive=True)),
            "half-closed connections": states.count(psutil.CONN_CLOSE_WAIT),
        }

    def close(self) -> None:
        """Close what the test itself holds."""
        self.api.close()
        self._engine.close()


@contextmanager
def started(gguf: Path, *options: str, **settings: str) -> Iterator[Product]:
    """Start a product and wait until it is ready; its log must be discreet, too."""
    ports = Ports()
    argv = [*TINY, "--application", "openjev_site.asgi.application", *ports, *options]
    argv += ["--context-length", "16384"]
    chosen = {f"OPENJEV_{name}": value for name, value in settings.items()}
    command = Running(argv, tiny_settings(gguf) | chosen)
    product = Product(command, ports)
    try:
        command.wait_for("Ready in ")
        yield product
    finally:
        product.close()
        command.stop()
    assert_discreet(command.output)


def assert_response(response: httpx.Response, outcome: Outcome) -> None:
    assert_said(response.status_code, response.headers, response.json(), outcome)


def assert_answer(asked: Asking, outcome: Outcome) -> None:
    asked.join(60)
    assert isinstance(asked.answer, httpx.Response), asked.answer
    assert_response(asked.answer, outcome)


def test_engine_that_hangs_and_then_dies_ends_the_command_and_answers_everybody(
    tiny_gguf: Path,
) -> None:
    with started(tiny_gguf, "--grandchild", REQUEST_TIMEOUT="60") as product:
        processes = product.command.descendants()
        asked = product.hang_in_the_branches()
        product.script(hang=True)
        assert not any(one.answer for one in asked)
        died = time.monotonic()
        product.script(exit=3)
        assert product.command.ends() == 1
        assert time.monotonic() - died < 2 + LATE_SECONDS
        for one in asked:
            assert_answer(one, GONE)
        assert "the fake engine's last words" in product.command.output
        assert_gone(processes)


def test_stalled_evaluations_are_answered_before_a_polite_end(tiny_gguf: Path) -> None:
    with started(tiny_gguf, REQUEST_TIMEOUT=str(REQUEST_SECONDS)) as product:
        processes = product.command.descendants()
        asked = product.hang_in_the_branches()
        product.command.process.send_signal(signal.SIGTERM)
        for one in asked:
            assert_answer(one, SILENT)
        assert product.command.ends() == 0
        assert_gone(processes)


def test_every_fault_over_http_and_nothing_piles_up(tiny_gguf: Path) -> None:
    with started(tiny_gguf, REQUEST_TIMEOUT=str(REQUEST_SECONDS)) as product:
        well = product.evaluate().json()
        first, second = (play_every_fault(product, well) for _ in range(2))
        for name, held in second.items():
            assert held <= first[name] + FLUCTUATION, (first, second)
        assert second["half-closed connections"] == 0
        product.command.process.send_signal(signal.SIGTERM)
        assert product.command.ends() == 0


def play_every_fault(product: Product, well: object) -> Mapping[str, int]:
    """One evaluation with each fault in it; returns what the product holds afterwards."""
    for fault, outcome in OUTCOMES.items():
        # the silent ones cost their deadline each time: in a branch only
        for suffix in (".0000", f".{BRANCHES:04d}")[outcome.at_deadline :]:
            product.script(fault=fault.value, suffix=suffix)
            begun = time.monotonic()
            assert_response(product.evaluate(), outcome)
            assert time.monotonic() - begun < REQUEST_SECONDS + LATE_SECONDS
            product.script(fault=Fault.NONE.value, suffix=suffix)
    product.until_running(0)
    assert product.evaluate().json() == well
    return product.holds()
