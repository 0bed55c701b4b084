"""The product as a process, with the public API on a socket, and a fake engine as its child."""

import contextlib
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.conftest import free_port
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
from tests.support.running import TINY, Running, assert_gone
from tests.support.served import tiny_settings

pytestmark = pytest.mark.process

EVALUATIONS = 8
FLUCTUATION = 8
"""By how much what is held may differ: idle connections and threads come and go. A leak would be of
as many as there are faults."""


class Product:
    """A started product.

    Attributes:
        command: the process.
        api: of its public API.
    """

    def __init__(self, gguf: Path, *options: str, **settings: str) -> None:
        port, engine_port = free_port(), free_port()
        argv = [*TINY, "--application", "openjev_site.asgi.application", "--port", str(port)]
        argv += ["--backend-port", str(engine_port), "--context-length", "16384"]
        chosen = {f"OPENJEV_{name}": value for name, value in settings.items()}
        self.command = Running([*argv, *options], tiny_settings(gguf) | chosen)
        self.api = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
        self._engine = httpx.Client(base_url=f"http://127.0.0.1:{engine_port}", timeout=10)

    def evaluate(self) -> httpx.Response:
        return self.api.post("/v1/systemone", json=BODY)

    def script(self, **step: Any) -> int:
        """Direct the engine; returns the number of calls that it is answering."""
        running: int = self._engine.post("/script", json=step).json()["running"]
        return running

    def until_running(self, calls: int) -> None:
        """Wait until the engine is answering so many calls."""
        deadline = time.monotonic() + 10
        while self.script() != calls:
            assert time.monotonic() < deadline, f"{self.script()} calls, not {calls}"
            time.sleep(0.02)

    def close(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in self.command.descendants():
                child.kill()
        self.command.process.kill()
        self.command.process.wait()
        self.command.process.stdout.close()
        self.api.close()
        self._engine.close()


@pytest.fixture
def product(tiny_gguf: Path) -> Iterator[Any]:
    """Start products, and end what is left of them."""
    started: list[Product] = []

    def start(*options: str, **settings: str) -> Product:
        started.append(Product(tiny_gguf, *options, **settings))
        return started[-1]

    yield start
    for each in started:
        each.close()
        assert_discreet(each.command.output)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(EVALUATIONS) as executor:
        yield executor


def assert_response(response: httpx.Response, outcome: Outcome) -> None:
    assert_said(response.status_code, response.headers, response.json(), outcome)


def in_flight(product: Product, pool: ThreadPoolExecutor) -> list[Future[httpx.Response]]:
    """Begin evaluations whose branches the engine holds."""
    asked = [pool.submit(product.evaluate) for _ in range(EVALUATIONS)]
    product.until_running(EVALUATIONS * BRANCHES)
    return asked


def hold_branches(product: Product) -> None:
    for number in range(1, BRANCHES + 1):
        product.script(fault="hang", suffix=f".{number:04d}")


@pytest.mark.parametrize("dies", [True, False], ids=["then dies", "for ever"])
def test_engine_that_hangs_ends_the_command_and_answers_everybody(
    product: Any, pool: ThreadPoolExecutor, dies: bool
) -> None:
    hang_timeout = 60 if dies else 2
    served = product("--grandchild", HANG_TIMEOUT=str(hang_timeout), REQUEST_TIMEOUT="60")
    served.command.wait_for("Ready in ")
    processes = served.command.descendants()
    hold_branches(served)
    asked = in_flight(served, pool)
    served.script(hang=True)
    if dies:
        served.script(exit=3)
    ended = served.command.ends(hang_timeout + 10)
    assert ended == 1
    for future in asked:
        assert_response(future.result(timeout=5), GONE)
    assert "    fake engine on http" in served.command.output, "its last words are missing"
    assert_gone(processes)


def test_stalled_evaluations_are_answered_before_a_polite_end(
    product: Any, pool: ThreadPoolExecutor
) -> None:
    served = product(REQUEST_TIMEOUT=str(REQUEST_SECONDS))
    served.command.wait_for("Ready in ")
    processes = served.command.descendants()
    hold_branches(served)
    asked = in_flight(served, pool)
    served.command.process.send_signal(signal.SIGTERM)
    for future in asked:
        assert_response(future.result(timeout=REQUEST_SECONDS + 10), SILENT)
    assert served.command.ends() == 0
    assert_gone(processes)


def test_stall_of_five_minutes_holds_up_a_polite_end_no_longer_than_its_grace(
    product: Any, pool: ThreadPoolExecutor
) -> None:
    served = product(REQUEST_TIMEOUT="300", DRAIN_TIMEOUT="1")
    served.command.wait_for("Ready in ")
    processes = served.command.descendants()
    hold_branches(served)
    asked = in_flight(served, pool)
    begun = time.monotonic()
    served.command.process.send_signal(signal.SIGTERM)
    assert served.command.ends() == 0
    assert time.monotonic() - begun < 1 + 10
    for future in asked:
        failure = future.exception(timeout=5)
        assert isinstance(failure, httpx.TransportError) or future.result().status_code >= 500
    assert_gone(processes)


def test_wrong_model_behind_the_port_ends_the_command_with_the_reason(product: Any) -> None:
    served = product("--served-model-name", "other/model")
    assert served.command.ends(60) == 1
    assert "serves 'other/model'" in served.command.output
    assert "Ready in" not in served.command.output


def open_things(process: psutil.Process) -> Mapping[str, int]:
    """What a process holds that could leak."""
    half_closed = [c for c in process.net_connections("tcp") if c.status == psutil.CONN_CLOSE_WAIT]
    return {
        "files": process.num_fds(),
        "threads": process.num_threads(),
        "children": len(process.children(recursive=True)),
        "half-closed connections": len(half_closed),
    }


def play_every_fault(served: Product, well: object) -> Mapping[str, int]:
    """One evaluation with each fault in it; returns what the product holds afterwards."""
    for fault, outcome in OUTCOMES.items():
        for suffix in (".0000", f".{BRANCHES:04d}")[outcome.at_deadline :]:
            served.script(fault=fault.value, suffix=suffix)
            begun = time.monotonic()
            assert_response(served.evaluate(), outcome)
            assert time.monotonic() - begun < REQUEST_SECONDS + LATE_SECONDS
            served.script(fault=Fault.NONE.value, suffix=suffix)
    served.until_running(0)
    assert served.evaluate().json() == well
    return open_things(psutil.Process(served.command.process.pid))


def test_every_fault_over_http_and_nothing_piles_up(product: Any, pool: ThreadPoolExecutor) -> None:
    served = product(REQUEST_TIMEOUT=str(REQUEST_SECONDS))
    served.command.wait_for("Ready in ")
    well = served.evaluate().json()
    held = [play_every_fault(served, well) for _ in range(2)]
    for name, first in held[0].items():
        assert held[1][name] <= first + FLUCTUATION, held
    assert held[1]["half-closed connections"] == 0
    served.command.process.send_signal(signal.SIGTERM)
    assert served.command.ends() == 0
