"""Modal: what a deployment asks for, and the process that its containers start and stop.

Nothing here reaches Modal: the `modal` command talks to a stand-in of its control plane.
"""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from modal._partial_function import _find_callables_for_obj
from modal._partial_function import _PartialFunctionFlags as Flags
from modal_proto import api_pb2

import modal_deploy
from backend.management.commands.runbackend import Command as RunBackend
from backend.profiles import DEFAULT_SGLANG_PROFILE
from tests.support.contract_server import ContractServer, over_http
from tests.support.fake_modal import ControlPlane, modal_command
from tests.support.loopback import free_port

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """What Modal is asked for with nothing set."""
    return asyncio.run(deploy(tmp_path_factory.mktemp("home")))


async def deploy(home: Path, **environment: str) -> ControlPlane:
    async with modal_command(home, server_url="http://127.0.0.1:9") as modal:
        code, said = await modal("deploy", str(ROOT / "modal_deploy.py"), **environment)
    assert code == 0, said
    assert not [value for name, value in environment.items() if "KEY" in name and value in said]
    return modal.plane


@pytest.mark.process
def test_a_deployment_is_one_b200_that_sleeps_when_idle(deployed):
    server = deployed.server
    gpu = server.resources.gpu_config
    assert (gpu.gpu_type, gpu.count) == ("B200", 1)
    assert server.is_server
    assert server.http_config.port == 8000
    assert server.http_config.unauthenticated
    assert list(server.http_config.proxy_regions) == ["us-west"]
    assert list(server.scheduler_placement.regions) == ["us"]
    assert server.startup_timeout_secs == server.http_config.startup_timeout == 1200
    assert server.http_config.exit_grace_period > modal_deploy.STOP_SECONDS
    scaling = server.autoscaler_settings
    assert (scaling.min_containers, scaling.scaledown_window) == (0, 300)
    assert not scaling.HasField("max_containers")
    assert scaling.target_concurrency_float == modal_deploy.TARGET_CONCURRENCY


@pytest.mark.process
def test_the_weights_and_all_that_is_compiled_stay_on_one_volume(deployed):
    (volume,) = deployed.requests("VolumeGetOrCreate")
    (mount,) = deployed.server.volume_mounts
    assert volume.deployment_name == "openjev-huggingface"
    caches = {"HF_HOME", "SGLANG_CACHE_DIR", "TRITON_CACHE_DIR"}
    assert all(deployed.environment[name].startswith(f"{mount.mount_path}/") for name in caches)


@pytest.mark.process
def test_the_image_is_sglangs_own_and_openjev_has_an_environment_of_its_own(deployed):
    first, *rest = deployed.dockerfile
    assert first == "FROM lmsysorg/sglang:v0.5.19"
    installs = [command for command in rest if "install" in command]
    assert installs
    assert all(f"--python {modal_deploy.PYTHON}" in command for command in installs)
    assert "ENTRYPOINT []" in rest
    runs = [command for command in rest if command.startswith("RUN ")]
    assert len(runs) == len(installs) + 1  # and the making of the environment
    files = set(deployed.files)
    assert f"{modal_deploy.SOURCE}/manage.py" in files
    assert f"{modal_deploy.SOURCE}/evaluations/templates/evaluations/page.html" in files
    assert any(file.endswith("/modal_deploy.py") for file in files)
    assert not [file for file in files if "__pycache__" in file or "/tests/" in file]


@pytest.mark.process
async def test_settings_go_along_in_the_environment_and_keys_in_a_secret(tmp_path):
    forwarded = {
        "OPENJEV_PROFILE": "qwen36",
        "OPENJEV_FRONTEND": "python",
        "OPENJEV_SERVED_MODEL_NAME": "ours",
    }
    plane = await deploy(
        tmp_path, **forwarded, OPENJEV_API_KEY="key-of-ours", OPENJEV_MAX_ANSWERS="9"
    )
    environment = plane.environment
    assert forwarded.items() <= environment.items()
    assert environment["OPENJEV_API_KEY"] == "key-of-ours"
    assert "OPENJEV_MAX_ANSWERS" not in environment
    assert not [command for command in plane.dockerfile if "OPENJEV" in command]


def test_the_profile_is_the_one_that_sglang_has_without_one():
    assert modal_deploy.DEFAULT_PROFILE == DEFAULT_SGLANG_PROFILE


def test_a_named_secret_is_used_instead_of_the_keys_of_this_shell(monkeypatch):
    monkeypatch.setattr(modal_deploy, "SECRET_NAME", "openjev")
    assert "openjev" in repr(modal_deploy.key_secret({"OPENJEV_API_KEY": "of-this-shell"}))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("OPENJEV_PROFILE", "qwen63", "must be one of"),
        ("OPENJEV_PROFILE", "embedded", "needs no GPU"),
        ("OPENJEV_FRONTEND", "go", "must be"),
        ("OPENJEV_API_KEY", "of two words", "OPENJEV_API_KEY is a value that is not allowed"),
        ("OPENJEV_API_KEY", "k-1", "OPENJEV_API_KEY has fewer than 8 characters"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_before_anything_is_deployed(name, value, reason):
    with pytest.raises(SystemExit, match=reason):
        modal_deploy.container_settings({name: value})


def test_a_container_can_read_the_file_without_the_rest_of_the_project(tmp_path):
    copy = tmp_path / "modal_deploy.py"
    copy.write_bytes((ROOT / "modal_deploy.py").read_bytes())
    program = (
        "import sys, modal_deploy; assert not {'backend', 'django'} & set(sys.modules); "
        "print(modal_deploy.container_settings({})['OPENJEV_PROFILE'])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "qwen36\n", "")


async def modal_run(home: Path, server: Callable) -> tuple[int, str, dict, ControlPlane]:
    report = home / "report.json"
    with over_http(server) as url:
        async with modal_command(home, server_url=url) as modal:
            code, said = await modal("run", str(ROOT / "modal_deploy.py"), "--output", str(report))
    written = json.loads(report.read_text())
    assert written["url"] == url
    return code, said, written, modal.plane


@pytest.mark.process
async def test_modal_run_puts_a_temporary_server_through_the_smoke_test(tmp_path):
    code, said, report, plane = await modal_run(tmp_path, ContractServer(not_ready=1))
    assert code == 0, said
    assert report["verdict"] == "ok"
    assert report["startup_seconds"] == 1.5
    assert "answers make sense" in said
    (ended,) = plane.requests("AppClientDisconnect")
    assert ended.reason == api_pb2.APP_DISCONNECT_REASON_ENTRYPOINT_COMPLETED


@pytest.mark.process
async def test_modal_run_fails_when_the_smoke_test_does_and_stops_all_the_same(tmp_path):
    def refuse(request: httpx.Request) -> httpx.Response:
        return httpx.Response(401, json={"error": {"message": "A key is needed."}})

    code, said, report, plane = await modal_run(tmp_path, refuse)
    assert code == 1, said
    assert "A key is needed." in report["error"]
    assert plane.requests("AppClientDisconnect")


# A stand-in of `runbackend`: 503, then 200; how it takes SIGTERM and how it ends is told.
CHILD = """
import http.server, os, signal, sys, time
port, ready_after, on_term, dies_after = int(sys.argv[1]), *map(float, sys.argv[2:])
born = time.monotonic()
signal.signal(signal.SIGTERM, lambda *_: os._exit(0) if on_term else None)
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        age = time.monotonic() - born
        self.send_response(200 if age >= ready_after else 503)
        self.end_headers()
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", port), Health)
server.timeout = 0.05
while not dies_after or time.monotonic() - born < dies_after:
    server.handle_request()
sys.exit(7)
"""


@pytest.fixture
def api(monkeypatch):
    """Start the stand-in; returns it with the list of exit codes the container was ended with."""
    monkeypatch.setattr(modal_deploy, "_POLL_SECONDS", 0.02)
    started = []

    def start(*, ready_after: float = 0, obeys: bool = True, dies_after: float = 0):
        port, ended = free_port(), []
        arguments = [str(port), str(ready_after), str(int(obeys)), str(dies_after)]
        one = modal_deploy.ApiProcess(
            [sys.executable, "-c", CHILD, *arguments], port=port, cwd=ROOT, end=ended.append
        )
        started.append(one)
        return one, ended

    yield start
    for one in started:
        one.stop(0.1)


@pytest.mark.process
def test_a_container_is_ready_only_when_the_api_is(api):
    one, ended = api(ready_after=0.5)
    began = time.monotonic()
    one.wait_until_ready(20)
    assert time.monotonic() - began >= 0.3
    assert ended == []


@pytest.mark.process
def test_stopping_lets_the_api_end_by_itself_and_ends_no_container(api):
    one, ended = api()
    one.wait_until_ready(20)
    one.stop(20)
    assert one.process.returncode == 0
    assert ended == []


@pytest.mark.process
def test_modal_starts_the_api_with_the_container_and_stops_it_with_it(monkeypatch):
    monkeypatch.setattr(modal_deploy, "PORT", free_port())
    monkeypatch.setattr(modal_deploy, "SOURCE", ROOT)
    child = [sys.executable, "-c", CHILD, str(modal_deploy.PORT), "0", "1", "0"]
    monkeypatch.setattr(modal_deploy, "command", lambda: child)
    container = modal_deploy.OpenJev._get_user_cls()()
    (start,) = _find_callables_for_obj(container, Flags.ENTER_POST_SNAPSHOT).values()
    (stop,) = _find_callables_for_obj(container, Flags.EXIT).values()
    start()
    assert container.api.process.poll() is None
    stop()
    assert container.api.process.returncode == 0


def test_a_container_runs_the_whole_product_with_the_sglang_of_its_image(monkeypatch):
    monkeypatch.setattr(modal_deploy.shutil, "which", lambda name: f"/opt/sglang/bin/{name}")
    python, script, name, *options = modal_deploy.command()
    assert (python, script, name) == (modal_deploy.PYTHON, "manage.py", "runbackend")
    chosen = RunBackend().create_parser("manage.py", "runbackend").parse_args(options)
    assert (chosen.host, chosen.port) == ("0.0.0.0", 8000)  # noqa: S104
    assert chosen.sglang_python == "/opt/sglang/bin/python3"


@pytest.mark.process
def test_an_api_that_does_not_stop_is_killed(api):
    one, ended = api(obeys=False)
    one.wait_until_ready(20)
    one.stop(0.2)
    assert one.process.returncode == -signal.SIGKILL
    assert ended == []


@pytest.mark.process
def test_the_container_ends_when_the_api_does(api, capsys):
    one, ended = api(dies_after=1)
    one.wait_until_ready(20)
    deadline = time.monotonic() + 20
    while not ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == [1]
    assert "exit code 7" in capsys.readouterr().out


@pytest.mark.process
def test_a_start_that_fails_says_how(api):
    one, ended = api(ready_after=60, dies_after=0.1)
    with pytest.raises(RuntimeError, match="ended with exit code 7 before it was ready"):
        one.wait_until_ready(20)
    assert ended == []


@pytest.mark.process
def test_a_start_that_takes_too_long_is_stopped(api):
    one, ended = api(ready_after=60)
    with pytest.raises(RuntimeError, match=r"not ready within 0\.3 s"):
        one.wait_until_ready(0.3)
    assert one.process.returncode is not None
    assert ended == []
