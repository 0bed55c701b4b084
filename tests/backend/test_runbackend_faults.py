"""What the command does, and its callers get, when engine and server do not get along.

The real application on a fake engine that the test directs.
"""

import json
import signal
import socket
import time

import httpx
import pytest

from tests.support.running import TINY, Asking, assert_gone
from tests.support.served import tiny_settings
from tests.support.tiny_gguf import CONTROL_TOKENS, vocabulary

pytestmark = pytest.mark.process

PRODUCT = ["--application", "openjev_site.asgi.application"]
PRODUCT += ["--vocabulary-size", len(vocabulary()[0]) + len(CONTROL_TOKENS)]
BODY = {
    "model": "jev-latest",
    "state": "The parcel arrived broken.",
    "questions": {
        "broken": {"type": "noul", "instructions": "Is the parcel damaged?"},
        "late": {"type": "noul", "instructions": "Is the parcel late?"},
    },
}


@pytest.fixture
def serve(start, ports, tiny_gguf):
    """Start the product and wait until it is ready."""

    def serve(*options, **environ):
        command = start(TINY, *ports, *PRODUCT, *options, **(tiny_settings(tiny_gguf) | environ))
        command.wait_for("Ready in ")
        return command

    return serve


@pytest.fixture
def direct(ports):
    """Tell the engine what to do; learn how many calls it has."""

    def direct(**step):
        answer = httpx.post(f"http://127.0.0.1:{ports.engine}/script", content=json.dumps(step))
        return answer.json()["running"]

    return direct


@pytest.fixture
def hang_in_the_engine(ports, direct):
    """Post evaluations and return when the engine has the first call of each, and keeps it."""

    def hang(count):
        direct(fault="hang", suffix=".0000")
        url = f"http://127.0.0.1:{ports.api}/v1/systemone"
        asked = [Asking("POST", url, json=BODY) for _ in range(count)]
        deadline = time.monotonic() + 30
        while direct() < count:
            assert time.monotonic() < deadline, [one.answer for one in asked]
            time.sleep(0.01)
        return asked

    return hang


def test_eight_evaluations_in_flight_are_answered_before_it_ends(serve, direct, hang_in_the_engine):
    command = serve("--grandchild")
    processes = command.descendants()
    assert len(processes) == 3  # keeper, engine, its worker
    asked = hang_in_the_engine(8)
    command.process.send_signal(signal.SIGTERM)
    command.wait_for("Waiting for 8 requests in flight")
    direct(release=True)
    assert [one.status() for one in asked] == [200] * 8
    assert command.ends() == 0
    assert_gone(processes)


def test_what_does_not_end_in_time_is_cut_short_with_an_error(serve, hang_in_the_engine):
    command = serve(OPENJEV_DRAIN_TIMEOUT="0.5")
    (asked,) = hang_in_the_engine(1)
    command.process.send_signal(signal.SIGTERM)
    assert command.ends() == 0
    assert "1 request did not finish within 0.5 seconds" in command.output
    assert asked.status() == 503


def test_a_dead_engines_requests_are_answered(serve, hang_in_the_engine):
    command = serve("--grandchild")
    processes = command.descendants()
    asked = hang_in_the_engine(2)
    command.engine().kill()
    killed = time.monotonic()
    assert command.ends() == 1
    assert time.monotonic() - killed < 2.0
    assert [one.status() for one in asked] == [503] * 2
    assert_gone(processes)


def test_another_model_behind_the_port_ends_it_at_once(start, ports, tiny_gguf):
    options = [*ports, *PRODUCT, "--served-model-name", "other/model"]
    command = start(TINY, *options, **tiny_settings(tiny_gguf))
    assert command.ends() == 1
    assert "Giving up, since waiting cannot help: " in command.output
    assert "serves 'other/model'" in command.output
    assert "Ready in" not in command.output


def test_another_model_is_not_served_by_the_engine_alone_either(start, ports):
    command = start(TINY, *ports, "--engine-only", "--served-model-name", "other/model")
    assert command.ends() == 1
    assert "serves 'other/model'" in command.output


def test_the_engine_alone_is_not_ready_before_a_real_answer(start, ports):
    command = start(TINY, *ports, "--engine-only", "--fault", "queue_full")
    command.wait_for("fake engine on")
    url = f"http://127.0.0.1:{ports.engine}"
    assert httpx.get(f"{url}/health").status_code == 200
    httpx.post(f"{url}/script", content=b'{"fault": "none"}')
    command.wait_for("Ready in ")


def test_a_port_lost_after_the_look_at_it_is_told(start, ports):
    code = (
        "import backend.serve; backend.serve.require_free = lambda *_: None;"
        "from tests.support import run_tiny; run_tiny.main()"
    )
    with socket.create_server(("127.0.0.1", ports.engine)):
        command = start(["-c", code], *ports)
        assert command.ends() == 1
    assert "address already in use" in command.output
    assert "Another server took the engine's port" in command.output
