"""Several processes on one port, with real signals, on a fake engine and a tiny application."""

import asyncio
import os
import signal
import sys
import time

import psutil
import pytest

from backend.launch import open_listener
from backend.lifespan import StartupRefused
from backend.serving.workers import MOST_DEATHS, Workers
from tests.support.loopback import free_port
from tests.support.running import TINY, Asking, assert_gone

pytestmark = pytest.mark.process


@pytest.fixture(params=["daphne", "uvicorn"])
def server(request):
    """The options that choose each server in turn, in two processes."""
    return ["--server", request.param, "--workers", 2]


TWO = ("--server", "uvicorn", "--workers", 2)


def at(ports, path):
    return f"http://127.0.0.1:{ports.api}{path}"


def pids(ports):
    """Who answers, of 16 clients at the same time."""
    asked = [Asking("GET", at(ports, "/pid")) for _ in range(16)]
    assert {one.status() for one in asked} == {200}
    return {int(one.answer.text) for one in asked}


def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_all_of_them_serve_and_a_signal_answers_what_is_in_flight(start, ports, server):
    command = start(TINY, *ports, *server, "--grandchild")
    command.wait_for("Ready in ")
    processes = command.descendants()
    assert len(processes) == 5  # two of the API, and the keeper, the engine, its worker
    serving = {worker.pid for worker in command.workers()}
    until(lambda: pids(ports) == serving)
    asked = [Asking("GET", at(ports, "/slow")) for _ in range(8)]
    command.wait_for("slow request\n" * 8)
    command.process.send_signal(signal.SIGTERM)
    assert command.ends() == 0
    assert [one.status() for one in asked] == [200] * 8
    assert command.output.count("drained") == 2
    assert_gone(processes)


def test_the_engines_death_ends_everything_soon(start, ports, server):
    command = start(TINY, *ports, *server, "--grandchild")
    command.wait_for("Ready in ")
    processes = command.descendants()
    asked = Asking("GET", at(ports, "/stuck"))
    command.wait_for("stuck request")
    command.engine().send_signal(signal.SIGKILL)
    killed = time.monotonic()
    assert command.ends() == 1
    assert time.monotonic() - killed < 3.0
    assert "The engine ended by itself" in command.output
    assert_gone(processes)
    asked.join(5)
    assert asked.answer is not None


def test_killing_the_command_leaves_nothing(start, ports, server):
    command = start(TINY, *ports, *server, "--grandchild")
    command.wait_for("Ready in ")
    processes = command.descendants()
    Asking("GET", at(ports, "/stuck"))
    command.wait_for("stuck request")
    command.process.kill()
    assert_gone(processes)


def test_a_worker_that_dies_is_replaced_while_the_others_serve(start, ports, server):
    command = start(TINY, *ports, *server)
    command.wait_for("Ready in ")
    dies, stays = command.workers()
    dies.kill()
    command.wait_for("A worker of the API ended by itself (exit code -9)")
    until(lambda: len(pids(ports) - {dies.pid}) == 2)
    assert stays.is_running()
    assert len(command.workers()) == 2
    command.process.send_signal(signal.SIGTERM)
    assert command.ends() == 0


def test_a_worker_that_is_asked_to_end_answers_first_and_is_replaced(start, ports):
    command = start(TINY, *ports, *TWO)
    command.wait_for("Ready in ")
    before = {worker.pid for worker in command.workers()}
    asked = [Asking("GET", at(ports, "/slow")) for _ in range(8)]
    command.wait_for("slow request\n" * 8)
    for worker in command.workers():
        worker.terminate()
    assert [one.status() for one in asked] == [200] * 8
    until(lambda: len([w for w in command.workers() if w.pid not in before]) == 2)
    until(lambda: not pids(ports) & before)
    assert command.process.poll() is None
    assert command.output.count("A worker of the API was asked to end, and is replaced.") == 2
    assert "ended by itself" not in command.output


def test_workers_that_die_again_and_again_are_given_up(start, ports):
    command = start(TINY, *ports, *TWO)
    command.wait_for("Ready in ")
    processes = command.descendants()
    killed = 0
    while command.process.poll() is None and killed < 20:
        for worker in command.workers():
            worker.kill()
            killed += 1
        time.sleep(0.05)
    assert command.ends() == 1
    assert "Workers of the API ended 6 times within 60 seconds." in command.output
    assert_gone(processes)


def test_a_second_signal_ends_it_at_once(start, ports):
    command = start(TINY, *ports, *TWO)
    command.wait_for("Ready in ")
    processes = command.descendants()
    Asking("GET", at(ports, "/stuck"))
    command.wait_for("stuck request")
    command.process.send_signal(signal.SIGTERM)
    command.wait_for("Stopping")
    assert command.process.poll() is None
    command.process.send_signal(signal.SIGTERM)
    assert command.ends(5) == 130
    assert_gone(processes)


def test_a_terminal_asks_only_the_command_to_end(start, ports):
    command = start(TINY, *ports, *TWO)
    command.wait_for("Ready in ")
    group = os.getpgid(command.process.pid)
    assert group not in {os.getpgid(worker.pid) for worker in command.workers()}


def test_an_application_that_refuses_to_start_is_code_1(start, ports):
    command = start(TINY, *ports, *TWO, TINY_ASGI_REFUSES="1")
    assert command.ends() == 1
    assert "The API cannot start: no readout." in command.output
    assert "A worker of the API failed." in command.output


def test_the_certainty_that_it_can_never_work_is_code_1_with_the_reason(start, ports):
    command = start(TINY, *ports, *TWO, "--grandchild", TINY_ASGI_UNFIT="1")
    command.wait_for("starting the engine")  # it may be over before that has started
    processes = command.descendants()
    assert command.ends() == 1
    assert "waiting cannot help: The tiny model does not fit." in command.output
    assert_gone(processes)


def test_what_never_becomes_ready_is_code_1(start, ports):
    command = start(
        TINY, *ports, *TWO, "--connect", "http://127.0.0.1:9", OPENJEV_STARTUP_TIMEOUT="2"
    )
    assert command.ends() == 1
    assert "Not ready within 2 seconds (OPENJEV_STARTUP_TIMEOUT)" in command.output
    assert "at http://127.0.0.1:9: The engine cannot be reached." in command.output


@pytest.fixture
async def workers():
    """Two that are not started; what they run, the test may choose."""
    with open_listener("127.0.0.1", free_port(), "--port") as listener:
        async with Workers(
            2, listener, application="", server="uvicorn", environment=os.environ
        ) as workers:
            yield workers


MISSING = ["/missing/python"]
KILLED = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
DEAF = [sys.executable, "-c", "import time; time.sleep(60)"]


async def test_workers_that_cannot_be_started_are_a_refusal(workers):
    workers._argv = MISSING
    with pytest.raises(StartupRefused, match="a worker could not be started: No such file"):
        await workers.startup()


async def test_a_worker_that_cannot_be_replaced_is_given_up(workers):
    workers._argv = KILLED
    await workers.startup()
    workers._argv = MISSING
    async with asyncio.timeout(10):
        assert await workers.refused() == (
            "A worker of the API could not be replaced: No such file or directory."
        )


async def test_those_that_do_not_end_are_killed_with_the_context(workers):
    workers._argv = DEAF
    others = set(psutil.Process().children())
    await workers.startup()
    processes = set(psutil.Process().children()) - others
    assert len(processes) == 2
    await workers.stop_accepting()
    await workers.shutdown(0.1)
    await workers.finish_answers(0.1)
    assert all(process.is_running() for process in processes)
    await workers.__aexit__(None, None, None)
    assert_gone(processes)


async def test_deaths_long_ago_do_not_count(workers, monkeypatch):
    monkeypatch.setattr("backend.serving.workers.DEATHS_SECONDS", 0.0)
    workers._argv = KILLED
    await workers.startup()
    while len(workers._deaths) <= MOST_DEATHS:  # noqa: ASYNC110 - no such event
        await asyncio.sleep(0.01)
    workers._argv = DEAF
    assert not workers._refusal.done()
