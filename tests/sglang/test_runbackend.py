"""`runbackend --sglang-python`: the real engine is started, used, drained and never left behind."""

import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.sglang.programs import (
    CPU_FLAGS,
    ENGINE_KEY,
    FRONTS,
    STAND_INS,
    START_SECONDS,
    scheduler_of,
    settings,
    sglang_python,
)
from tests.support.running import COMMAND, Asking, Ports, Running, assert_gone

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

QUESTIONS = {"refund": {"type": "noul", "instructions": "Does the customer want money back?"}}
DRAIN_SECONDS = 120.0


@pytest.fixture
def ports():
    return Ports()


@pytest.fixture
def start(checkpoint, ports):
    """Starts the command on one of the fronts and waits until it is ready."""
    commands = []

    def start(front):
        options = ("--sglang-python", sglang_python(), "--frontend", front, "--", *CPU_FLAGS)
        drain = {"OPENJEV_DRAIN_TIMEOUT": str(DRAIN_SECONDS)}
        command = Running(
            [*COMMAND, *ports, *options], {**STAND_INS, **settings(checkpoint, **drain)}
        )
        commands.append(command)
        command.wait_for("Ready in ", START_SECONDS)
        return command

    yield start
    for command in commands:
        command.stop()


def ask(ports, state):
    body = {"model": "jev-latest", "state": state, "questions": QUESTIONS}
    return Asking("POST", f"http://127.0.0.1:{ports.api}/v1/systemone", json=body)


def wait_for_calls(command, ports, count):
    """Wait until the API has as many connections to its engine."""
    api = psutil.Process(command.process.pid)
    deadline = time.monotonic() + 60
    while sum(c.raddr[1:] == (ports.engine,) for c in api.net_connections("tcp")) < count:
        assert time.monotonic() < deadline, command.output
        time.sleep(0.01)


def assert_key_is_hidden(command):
    """It is in no argument list, which every user can read, in no log, and no more in a file."""
    arguments = [argument for process in command.descendants() for argument in process.cmdline()]
    assert ENGINE_KEY not in " ".join(arguments)
    assert not [path for path in arguments if path.endswith(".yaml") and Path(path).exists()]
    assert ENGINE_KEY not in command.output


@pytest.mark.parametrize("front", FRONTS)
def test_it_hides_the_key_and_answers_what_is_in_flight_before_it_ends(start, ports, front):
    command = start(front)
    processes = command.descendants()
    assert_key_is_hidden(command)
    asked = [ask(ports, f"State {n}. " + "It goes on and on. " * 200) for n in range(8)]
    wait_for_calls(command, ports, 8)
    command.process.send_signal(signal.SIGTERM)
    assert [one.status() for one in asked] == [200] * 8
    assert command.ends(DRAIN_SECONDS) == 0
    assert_gone(processes)


@pytest.mark.parametrize("front", FRONTS)
def test_the_death_of_sglang_ends_everything(start, front):
    command = start(front)
    processes = command.descendants()
    command.engine().kill()
    killed = time.monotonic()
    assert command.ends() == 1
    assert time.monotonic() - killed < 5.0  # 2 s on a machine with nothing else to do
    assert_gone(processes)


@pytest.mark.parametrize("front", FRONTS)
def test_the_death_of_the_scheduler_ends_everything_when_sglang_has_seen_it(start, front):
    command = start(front)
    processes = command.descendants()
    scheduler_of(command).kill()
    assert command.ends(60) == 1
    assert "The engine ended by itself" in command.output
    assert_gone(processes)


def test_killing_the_command_leaves_nothing_of_sglang(start):
    command = start("python")
    processes = command.descendants()
    assert len(processes) >= 4  # the keeper, SGLang, its scheduler and its detokenizer
    command.process.kill()
    assert_gone(processes)
