"""The whole command as a process, with real signals, on a fake engine and a tiny application.

The last tests run the real command on the embedded engine and a tiny random model.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.conftest import free_port

pytestmark = pytest.mark.process

ROOT = Path(__file__).parent.parent.parent
TINY = ["-m", "tests.support.run_tiny"]
COMMAND = ["manage.py", "runbackend"]


class Running:
    """A started command, with what it has written so far."""

    def __init__(self, argv, environ):
        self.process = subprocess.Popen(
            [sys.executable, *argv],
            cwd=ROOT,
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._more:
                self.output += line
                self._more.notify_all()
        with self._more:
            self._more.notify_all()

    def wait_for(self, text, seconds=40):
        with self._more:
            found = self._more.wait_for(
                lambda: text in self.output or not self._reader.is_alive(), seconds
            )
        assert found, self.output
        assert text in self.output, self.output

    def descendants(self):
        return psutil.Process(self.process.pid).children(recursive=True)

    def engine(self):
        """The engine itself: the child of the keeper."""
        (keeper,) = psutil.Process(self.process.pid).children()
        return keeper.children()[0]

    def ends(self, seconds=20):
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code


@pytest.fixture
def start():
    running = []

    def start(argv, *options, **environ):
        command = Running([*argv, *map(str, options)], environ)
        running.append(command)
        return command

    yield start
    for command in running:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in command.descendants():
                child.kill()
        command.process.kill()
        command.process.wait()
        command.process.stdout.close()


@pytest.fixture
def ports():
    return ("--port", free_port(), "--backend-port", free_port())


def get(ports, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{ports[1]}{path}", timeout=20) as answer:
        return answer.status, answer.read(), dict(answer.headers)


def in_thread(ports, path):
    answers = []

    def ask():
        try:
            answers.append(get(ports, path)[0])
        except OSError as error:
            answers.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, answers


def assert_gone(processes):
    _, alive = psutil.wait_procs(processes, timeout=5)
    alive = [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert alive == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_answers_what_is_in_flight_then_ends_with_0(start, ports, number):
    command = start(TINY, *ports, "--grandchild")
    command.wait_for("Ready in ")
    processes = command.descendants()
    assert len(processes) == 3  # keeper, engine, its worker
    asked = [in_thread(ports, "/slow") for _ in range(8)]
    for _ in range(8):
        command.wait_for("slow request\n" * 8)
    command.process.send_signal(number)
    assert command.ends() == 0
    for thread, _ in asked:
        thread.join(5)
    assert [answers for _, answers in asked] == [[200]] * 8
    assert "drained" in command.output
    assert_gone(processes)


def test_the_engines_death_ends_the_command_within_2_seconds(start, ports):
    command = start(TINY, *ports, "--grandchild")
    command.wait_for("Ready in ")
    processes = command.descendants()
    command.engine().send_signal(signal.SIGKILL)
    killed = time.monotonic()
    assert command.ends() == 1
    assert time.monotonic() - killed < 2.0
    assert re.search(
        r"engine ended by itself \(exit code 137\).*\n +fake engine on", command.output
    )
    assert_gone(processes)


def test_the_death_of_the_engines_keeper_is_the_engines_death(start, ports):
    command = start(TINY, *ports, "--grandchild")
    command.wait_for("Ready in ")
    processes = command.descendants()
    command.engine().parent().send_signal(signal.SIGKILL)
    assert command.ends() == 1
    assert_gone(processes)


def test_an_engine_that_ends_by_itself_is_told_with_its_last_words(start, ports):
    command = start(TINY, *ports, "--die-after", 1.0)
    assert command.ends() == 1
    assert "exit code 3" in command.output
    assert "    the fake engine's last words" in command.output


def test_requests_in_flight_do_not_hold_up_the_end_of_a_dead_engine(start, ports):
    command = start(TINY, *ports)
    command.wait_for("Ready in ")
    thread, answers = in_thread(ports, "/stuck")
    command.wait_for("stuck request")
    command.engine().send_signal(signal.SIGKILL)
    killed = time.monotonic()
    assert command.ends() == 1
    assert time.monotonic() - killed < 3.0
    thread.join(5)
    assert len(answers) == 1


def test_killing_the_command_leaves_no_engine(start, ports):
    command = start(TINY, *ports, "--grandchild")
    command.wait_for("Ready in ")
    processes = command.descendants()
    command.process.kill()
    assert_gone(processes)


def test_a_second_signal_ends_it_at_once(start, ports):
    command = start(TINY, *ports)
    command.wait_for("Ready in ")
    processes = command.descendants()
    thread, _ = in_thread(ports, "/stuck")
    command.wait_for("stuck request")
    command.process.send_signal(signal.SIGINT)
    command.wait_for("Stopping")
    assert command.process.poll() is None
    command.process.send_signal(signal.SIGINT)
    assert command.ends(3) == 130
    thread.join(5)
    assert_gone(processes)


def test_no_new_connections_while_draining(start, ports):
    command = start(TINY, *ports)
    command.wait_for("Ready in ")
    thread, answers = in_thread(ports, "/slow")
    command.wait_for("slow request")
    command.process.send_signal(signal.SIGTERM)
    command.wait_for("Stopping")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", ports[1]), timeout=0.2).close()
        except ConnectionRefusedError:
            break
        except OSError:
            continue  # caught while the socket was being closed: neither taken nor refused
    else:
        pytest.fail("it still accepts connections")
    assert command.ends() == 0
    thread.join(5)
    assert answers == [200]


def test_an_application_that_refuses_to_start_is_code_1(start, ports):
    command = start(TINY, *ports, TINY_ASGI_REFUSES="1")
    assert command.ends() == 1
    assert "The API cannot start: no readout." in command.output


def test_the_engine_alone(start, ports):
    command = start(TINY, *ports, "--engine-only")
    command.wait_for("Ready in ")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ports[1]))
    processes = command.descendants()
    command.process.send_signal(signal.SIGTERM)
    assert command.ends() == 0
    assert_gone(processes)


def test_connecting_starts_no_engine(start, ports):
    engine = start(TINY, *ports, "--engine-only")
    engine.wait_for("Ready in ")
    url = f"http://127.0.0.1:{ports[3]}"
    command = start(TINY, "--port", ports[1], "--connect", url)
    command.wait_for("Ready in ")
    assert command.descendants() == []
    status, _, headers = get(ports, "/")
    assert status == 200
    assert "Server" not in headers
    command.process.send_signal(signal.SIGTERM)
    assert command.ends() == 0
    assert engine.process.poll() is None


def test_two_starts_on_one_port_the_second_says_so(start, ports):
    first = start(TINY, *ports)
    first.wait_for("Ready in ")
    second = start(TINY, "--port", ports[1], "--backend-port", free_port())
    assert second.ends() == 1
    assert f"Port {ports[1]} on 127.0.0.1 is already in use" in second.output
    assert "with --port" in second.output
    third = start(TINY, "--port", free_port(), "--backend-port", ports[3])
    assert third.ends() == 1
    assert "with --backend-port" in third.output
    assert first.process.poll() is None


def test_a_port_lost_in_the_race_starts_nothing(start, ports):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = (
            "import sys; import backend.serve; backend.serve.require_free = lambda *_: None;"
            f"sys.argv += ['--port', '{port}', '--backend-port', '{ports[3]}'];"
            "from tests.support import run_tiny; run_tiny.main()"
        )
        command = start(["-c", code])
        assert command.ends() == 1
    assert "cannot listen" in command.output
    assert "fake engine" not in command.output


def test_a_server_that_is_stopped_by_something_else_takes_the_engine_with_it(start, ports):
    command = start(TINY, *ports)
    command.wait_for("Ready in ")
    processes = command.descendants()
    thread, _ = in_thread(ports, "/reactor-stop")
    assert command.ends() == 1
    thread.join(5)
    assert_gone(processes)


def test_the_real_command_serves_the_embedded_engine_and_ends_clean(start, ports, tiny_gguf):
    command = start(COMMAND, *ports, OPENJEV_MODEL=str(tiny_gguf))
    command.wait_for("Ready in ")
    processes = command.descendants()
    status, body, headers = get(ports, "/health")
    assert status == 200
    assert b'"ok"' in body
    assert "Server" not in headers
    command.process.send_signal(signal.SIGINT)
    assert command.ends() == 0
    assert_gone(processes)


def test_the_real_command_ends_with_its_engine(start, ports, tiny_gguf):
    command = start(COMMAND, *ports, OPENJEV_MODEL=str(tiny_gguf))
    command.wait_for("Ready in ")
    processes = command.descendants()
    command.engine().send_signal(signal.SIGKILL)
    killed = time.monotonic()
    assert command.ends() == 1
    assert time.monotonic() - killed < 2.0
    assert_gone(processes)
