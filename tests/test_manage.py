"""Signals to a command, before and after the time in which it handles them itself."""

import signal
from contextlib import contextmanager

import pytest

from tests.support.interpreter import write_interpreter
from tests.support.loopback import free_port
from tests.support.running import COMMAND, Running

pytestmark = pytest.mark.process

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def _no_signal_is_ignored():
    """Under `nohup` the tests, and all that they start, would ignore SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@contextmanager
def running(argv, environ):
    command = Running(argv, environ)
    try:
        yield command
    finally:
        command.stop()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_command_that_waits_ends_without_a_traceback(number):
    with running(["manage.py", "smoke", f"http://127.0.0.1:{free_port()}"], {}) as smoke:
        smoke.wait_for("Waiting")
        smoke.process.send_signal(number)
        assert smoke.ends() == 130
        assert "Traceback" not in smoke.output


@pytest.mark.parametrize("number", SIGNALS)
def test_a_start_that_is_interrupted_leaves_no_key_behind(tmp_path, number):
    checkpoint, temporary = tmp_path / "checkpoint", tmp_path / "temporary"
    checkpoint.mkdir()
    temporary.mkdir()
    environ = {
        "TMPDIR": str(temporary),
        "OPENJEV_PROFILE": "qwen3-8b",
        "OPENJEV_MODEL": str(checkpoint),
        "OPENJEV_BACKEND_API_KEY": "engine-key",
    }
    argv = [*COMMAND, "--port", str(free_port()), "--backend-port", str(free_port())]
    argv += ["--frontend", "python", "--sglang-python", str(write_interpreter(tmp_path / "python"))]
    with running(argv, environ) as command:
        command.wait_for("Engine  ")  # the file with the key is there; the API is not yet loaded
        command.process.send_signal(number)
        assert command.ends() in {0, 1, 130}  # as far as it has come meanwhile
        assert "Traceback" not in command.output
    assert list(temporary.iterdir()) == []
