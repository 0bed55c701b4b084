"""The whole command as a process, with real signals, on a fake engine and a tiny application.

The last tests run the real command on the embedded engine and a tiny random model.
"""

import re
import signal
import socket
import time

import httpx
import pytest

from tests.support.interpreter import write_interpreter
from tests.support.loopback import free_port
from tests.support.running import COMMAND, TINY, Asking, assert_gone

pytestmark = pytest.mark.process


@pytest.fixture(params=["daphne", "uvicorn"])
def server(request):
    """The options that choose each server in turn."""
    return ["--server", request.param]


def at(ports, path):
    return f"http://127.0.0.1:{ports.api}{path}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_answers_what_is_in_flight_then_ends_with_0(start, ports, server, number):
    command = start(TINY, *ports, *server, "--grandchild")
    command.wait_for("Ready in ")
    processes = command.descendants()
    assert len(processes) == 3  # keeper, engine, its worker
    asked = [Asking("GET", at(ports, "/slow")) for _ in range(8)]
    command.wait_for("slow request\n" * 8)
    command.process.send_signal(number)
    assert command.ends() == 0
    assert [one.status() for one in asked] == [200] * 8
    assert "drained" in command.output
    assert_gone(processes)


def test_the_engines_death_ends_the_command_within_2_seconds(start, ports, server):
    command = start(TINY, *ports, *server, "--grandchild")
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


def test_requests_in_flight_do_not_hold_up_the_end_of_a_dead_engine(start, ports, server):
    command = start(TINY, *ports, *server)
    command.wait_for("Ready in ")
    asked = Asking("GET", at(ports, "/stuck"))
    command.wait_for("stuck request")
    command.engine().send_signal(signal.SIGKILL)
    killed = time.monotonic()
    assert command.ends() == 1
    assert time.monotonic() - killed < 3.0
    asked.join(5)
    assert asked.answer is not None


def test_killing_the_command_leaves_no_engine(start, ports, server):
    command = start(TINY, *ports, *server, "--grandchild")
    command.wait_for("Ready in ")
    processes = command.descendants()
    command.process.kill()
    assert_gone(processes)


def test_killing_the_command_while_the_engine_starts_leaves_no_key(start, ports, tmp_path):
    begun = 'echo "SGLang begins"; exec sleep 300'
    python = write_interpreter(tmp_path / "python", started=begun)
    options = ["--engine-only", "--sglang-python", python, "--frontend", "python"]
    command = start(
        COMMAND,
        *ports,
        *options,
        OPENJEV_MODEL=str(tmp_path),
        OPENJEV_BACKEND_API_KEY="open-sesame",
        TMPDIR=str(tmp_path),
    )
    command.wait_for("SGLang begins")
    (file,) = tmp_path.glob("*.yaml")
    assert "open-sesame" in file.read_text()
    processes = command.descendants()
    command.process.kill()
    assert_gone(processes)
    assert not file.exists()


def test_a_second_signal_ends_it_at_once(start, ports, server):
    command = start(TINY, *ports, *server)
    command.wait_for("Ready in ")
    processes = command.descendants()
    asked = Asking("GET", at(ports, "/stuck"))
    command.wait_for("stuck request")
    command.process.send_signal(signal.SIGINT)
    command.wait_for("Stopping")
    assert command.process.poll() is None
    command.process.send_signal(signal.SIGINT)
    assert command.ends(3) == 130
    asked.join(5)
    assert_gone(processes)


def test_no_new_connections_while_draining(start, ports, server):
    command = start(TINY, *ports, *server)
    command.wait_for("Ready in ")
    asked = Asking("GET", at(ports, "/slow"))
    command.wait_for("slow request")
    command.process.send_signal(signal.SIGTERM)
    command.wait_for("Stopping")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", ports.api), timeout=0.2).close()
        except ConnectionRefusedError:
            break
        except OSError:
            continue  # caught while the socket was being closed: neither taken nor refused
    else:
        pytest.fail("it still accepts connections")
    assert command.ends() == 0
    assert asked.status() == 200


def test_an_application_that_refuses_to_start_is_code_1(start, ports, server):
    command = start(TINY, *ports, *server, TINY_ASGI_REFUSES="1")
    assert command.ends() == 1
    assert "The API cannot start: no readout." in command.output


def test_the_engine_alone(start, ports):
    command = start(TINY, *ports, "--engine-only")
    command.wait_for("Ready in ")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ports.api))
    processes = command.descendants()
    command.process.send_signal(signal.SIGTERM)
    assert command.ends() == 0
    assert_gone(processes)


def test_connecting_starts_no_engine(start, ports):
    engine = start(TINY, *ports, "--engine-only")
    engine.wait_for("Ready in ")
    url = f"http://127.0.0.1:{ports.engine}"
    command = start(TINY, "--port", ports.api, "--connect", url)
    command.wait_for("Ready in ")
    assert command.descendants() == []
    answer = httpx.get(at(ports, "/"))
    assert answer.status_code == 200
    assert "Server" not in answer.headers
    command.process.send_signal(signal.SIGTERM)
    assert command.ends() == 0
    assert engine.process.poll() is None


def test_two_starts_on_one_port_the_second_says_so(start, ports):
    first = start(TINY, *ports)
    first.wait_for("Ready in ")
    second = start(TINY, "--port", ports.api, "--backend-port", free_port())
    assert second.ends() == 1
    assert f"Port {ports.api} on 127.0.0.1 is already in use" in second.output
    assert "with --port" in second.output
    third = start(TINY, "--port", free_port(), "--backend-port", ports.engine)
    assert third.ends() == 1
    assert "with --backend-port" in third.output
    assert first.process.poll() is None


def test_a_port_lost_in_the_race_starts_nothing(start, ports):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = (
            "import sys; import backend.serve; backend.serve.require_free = lambda *_: None;"
            f"sys.argv += ['--port', '{port}', '--backend-port', '{ports.engine}'];"
            "from tests.support import run_tiny; run_tiny.main()"
        )
        command = start(["-c", code])
        assert command.ends() == 1
    assert f"Port {port} on 127.0.0.1 is already in use" in command.output
    assert "fake engine" not in command.output


def test_a_server_that_is_stopped_by_something_else_takes_the_engine_with_it(start, ports):
    command = start(TINY, *ports)
    command.wait_for("Ready in ")
    processes = command.descendants()
    asked = Asking("GET", at(ports, "/reactor-stop"))
    assert command.ends() == 1
    asked.join(5)
    assert_gone(processes)


def test_the_real_command_serves_the_embedded_engine_and_ends_clean(
    start, ports, server, tiny_gguf
):
    command = start(COMMAND, *ports, *server, OPENJEV_MODEL=str(tiny_gguf))
    command.wait_for("Ready in ")
    processes = command.descendants()
    answer = httpx.get(at(ports, "/health"))
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"
    assert "Server" not in answer.headers
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
