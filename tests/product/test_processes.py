"""The command's life: what ends it, with which code, and that nothing is left behind."""

import json
import signal
import time

import pytest

from tests.support.loopback import free_port
from tests.support.running import Asking, assert_gone
from tests.support.served import ROOT, serve

pytestmark = pytest.mark.process


def test_a_killed_engine_ends_the_command_with_an_error_within_two_seconds(tiny_product):
    family = tiny_product.family()
    tiny_product.engine().kill()
    killed = time.monotonic()
    assert tiny_product.process.wait(10) == 1
    assert time.monotonic() - killed < 2
    assert_gone(family)
    assert "The engine ended by itself" in tiny_product.log.read_text()


def test_a_hung_engine_ends_the_command_with_an_error_and_its_callers_are_told(
    tmp_path, tiny_environ
):
    ports = {"port": free_port(), "backend_port": free_port()}
    environ = {**tiny_environ, "OPENJEV_HANG_TIMEOUT": "2"}
    body = json.loads((ROOT / "examples/request.json").read_text())
    with serve(tmp_path, **ports, seconds=60, environ=environ) as served:
        family = served.family()
        served.engine().suspend()
        asked = Asking("POST", f"{served.url}/v1/systemone", json=body)
        assert served.process.wait(20) == 1
        assert_gone(family)
        assert asked.status() == 503
        said = served.log.read_text()
    assert "The engine has not answered for 2 seconds (OPENJEV_HANG_TIMEOUT)" in said
    assert "The last it said:\n    Loading weights from tiny.gguf\n    Engine ready: " in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_signal_ends_everything_with_zero(tiny_product, number):
    family = tiny_product.family()
    tiny_product.process.send_signal(number)
    assert tiny_product.process.wait(15) == 0
    assert_gone(family)


def test_a_killed_command_takes_its_engine_with_it(tiny_product):
    family = tiny_product.family()
    assert len(family) >= 2
    tiny_product.process.kill()
    tiny_product.process.wait(5)
    assert_gone(family)
