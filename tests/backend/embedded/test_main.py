"""The engine as a process: readiness, signals, a dead parent, a bad file, a taken port."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from backend.embedded.__main__ import main
from tests.support.loopback import free_port, wait_until_healthy

ROOT = Path(__file__).parents[3]
WAIT = 20.0
pytestmark = pytest.mark.process


def start(path: Path, port: int, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "backend.embedded", "--gguf", str(path), "--port", str(port)]
    return subprocess.Popen(
        [*command, *arguments],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )


def post(url: str, **body: Any) -> Any:
    response = httpx.post(url, json=body, timeout=WAIT)
    assert response.status_code == 200
    return response.json()


def test_running_engine_answers_and_reuses(tiny_engine: str) -> None:
    for _ in range(2):
        post(
            f"{tiny_engine}/generate",
            input_ids=list(range(50)),
            sampling_params={"max_new_tokens": 1},
        )
        branch = post(
            f"{tiny_engine}/generate",
            input_ids=[*range(50), 7, 8],
            sampling_params={"max_new_tokens": 1},
            return_logprob=True,
            token_ids_logprob=[3, 4],
        )
        assert branch["meta_info"]["cached_tokens"] == 50


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_with_code_0_and_its_log_is_two_lines(
    tiny_gguf: Path, number: signal.Signals
) -> None:
    port = free_port()
    process = start(tiny_gguf, port, "--threads", "1")
    url = f"http://127.0.0.1:{port}"
    wait_until_healthy(url, process)
    ids = [123, 456, 789] * 10
    post(f"{url}/generate", input_ids=ids, sampling_params={"max_new_tokens": 1}, rid="name-of-it")
    process.send_signal(number)
    _, log = process.communicate(timeout=WAIT)
    assert process.returncode == 0
    loading, line = log.decode().splitlines()
    assert "Loading weights from tiny.gguf" in loading
    assert "Engine ready: tiny.gguf" in line
    assert "1 threads" in line


def test_key_of_the_environment_is_required_and_never_shown(tiny_gguf: Path) -> None:
    port = free_port()
    process = start(tiny_gguf, port, OPENJEV_BACKEND_API_KEY="open-sesame")
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", process)
        refused = httpx.get(f"http://127.0.0.1:{port}/server_info", timeout=WAIT)
        assert refused.status_code == 401
        assert "open-sesame" not in " ".join(psutil.Process(process.pid).cmdline())
    finally:
        process.terminate()
        _, log = process.communicate(timeout=WAIT)
    assert b"open-sesame" not in log


def test_request_that_is_not_http_is_refused_and_not_quoted_in_the_log(tiny_gguf: Path) -> None:
    port = free_port()
    process = start(tiny_gguf, port)
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", process)
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\na secret sentence")
            assert connection.recv(100).startswith(b"HTTP/1.0 400 ")
    finally:
        process.terminate()
        _, log = process.communicate(timeout=WAIT)
    assert b"secret" not in log
    assert b"Traceback" not in log


def test_idle_engine_uses_no_cpu(tiny_gguf: Path) -> None:
    port = free_port()
    process = start(tiny_gguf, port)
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", process)
        watched = psutil.Process(process.pid)
        before = watched.cpu_times()
        time.sleep(1.0)
        after = watched.cpu_times()
        assert after.user + after.system - before.user - before.system < 0.1
    finally:
        process.terminate()
        process.communicate(timeout=WAIT)


def test_engine_ends_when_its_parent_is_gone(tiny_gguf: Path) -> None:
    port = free_port()
    script = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(sys.argv[1:])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "backend.embedded", "--gguf", str(tiny_gguf)]
    parent = subprocess.Popen(
        [sys.executable, "-c", script, *command, "--port", str(port)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert parent.stdout is not None
    engine = psutil.Process(int(parent.stdout.readline()))
    wait_until_healthy(f"http://127.0.0.1:{port}", parent)
    parent.kill()
    parent.communicate(timeout=WAIT)
    engine.wait(WAIT)  # raises if it is still there
    assert not engine.is_running()


def test_crash_of_the_computation_ends_the_process(tiny_gguf: Path) -> None:
    port = free_port()
    script = (
        "import sys\n"
        "from backend.embedded import __main__ as engine\n"
        "from backend.embedded.model import Model\n"
        "def crash(*arguments, **options):\n"
        "    raise MemoryError\n"
        "Model.forward = crash\n"
        "sys.exit(engine.main(sys.argv[1:]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, "--gguf", str(tiny_gguf), "--port", str(port)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
    )
    url = f"http://127.0.0.1:{port}"
    wait_until_healthy(url, process)
    body = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 1}}
    with contextlib.suppress(httpx.TransportError):  # it may be gone before it can answer
        assert httpx.post(f"{url}/generate", json=body, timeout=WAIT).status_code == 500
    _, log = process.communicate(timeout=WAIT)
    assert process.returncode == 1
    assert b"The computation failed." in log


def test_unusable_setting_is_code_2(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENJEV_BACKEND_API_KEY", "not printable \n")
    assert main(["--gguf", str(tiny_gguf)]) == 2
    assert "OPENJEV_BACKEND_API_KEY" in caplog.text
    assert "not printable" not in caplog.text


def test_bad_file_is_code_1_and_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"not a model")
    process = start(path, free_port())
    _, log = process.communicate(timeout=WAIT)
    assert process.returncode == 1
    assert b"does not start with the letters GGUF" in log
    assert b"Traceback" not in log


def test_taken_port_is_code_1_and_a_sentence(tiny_engine: str, tiny_gguf: Path) -> None:
    process = start(tiny_gguf, int(tiny_engine.rsplit(":", 1)[1]))
    _, log = process.communicate(timeout=WAIT)
    assert process.returncode == 1
    assert b"cannot listen on 127.0.0.1" in log
    assert b"Traceback" not in log


def test_help_needs_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "--cache-bytes" in capsys.readouterr().out
