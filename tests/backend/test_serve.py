"""What is settled and looked at before anything starts."""

import socket
import sys
import tempfile
from contextlib import ExitStack

import pytest
from django.conf import settings

from backend import serve as serving
from backend.launch import LaunchError
from backend.options import Options, configure
from backend.serve import serve
from tests.support.interpreter import write_interpreter
from tests.support.loopback import free_port

EVERYWHERE = "0.0.0.0"  # noqa: S104 - named, never listened on


@pytest.fixture(autouse=True)
def unchanged_settings(monkeypatch):
    monkeypatch.setattr(settings, "OPENJEV", settings.OPENJEV)
    monkeypatch.setattr(settings, "OPENJEV_PROBLEMS", settings.OPENJEV_PROBLEMS)
    for name in ("OPENJEV_PROFILE", "OPENJEV_BACKEND_URL", "OPENJEV_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def started(monkeypatch):
    """Stand-ins for all that starts something; what they were given."""
    given = {}

    async def run(**parts):
        given.update(parts)
        return 7

    monkeypatch.setattr(serving, "run", run)
    monkeypatch.setattr(serving, "_embedded_engine", lambda config, port: ("engine", port))
    return given


def told(options, check=list):
    lines = []
    code = serve(options, say=lines.append, check=check)
    return code, lines


def test_bad_settings_are_checked_with_the_profile_applied_before_anything_starts(started):
    def check():
        assert settings.OPENJEV.profile == "embedded-0.5b"
        raise LaunchError("a bad setting")

    with pytest.raises(LaunchError, match="a bad setting"):
        told(Options(profile="embedded-0.5b"), check)
    assert started == {}


def test_options_that_contradict_each_other_stop_the_start(started):
    with pytest.raises(LaunchError, match="needs SGLang"):
        told(Options(profile="qwen36"))
    assert started == {}


def test_the_command_is_shown_without_starting_anything_even_where_ports_are_taken(started):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, (line,) = told(Options(profile="qwen36", backend_port=port, print_command=True))
    assert code == 0
    assert f"--port {port}" in line
    assert started == {}


def test_sglang_is_made_ready_but_started_by_the_runtime(started, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENJEV_MODEL", str(tmp_path))
    python = write_interpreter(tmp_path / "python")
    options = Options(sglang_python=str(python), backend_port=free_port(), engine_only=True)
    code, lines = told(options)
    assert code == 7
    assert started["engine"].group is None
    assert lines[1] == f"SGLang  0.5.19, rust front, {python}"


async def test_sglang_is_run_where_the_user_is_with_what_was_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENJEV_MODEL", str(tmp_path))
    monkeypatch.setenv("OPENJEV_BACKEND_API_KEY", "sesame")
    python = write_interpreter(tmp_path / "python", started='pwd; echo "$0 $2 $4"; echo sesame')
    options = Options(sglang_python=str(python), backend_port=free_port())
    with ExitStack() as until_ready:
        engine = serving._sglang_engine(options, configure(options), until_ready, print)
        await engine.start()
        await engine.wait()
        words = await engine.last_words()
        await engine.stop(0)
    assert words == [str(tmp_path), f"{python} sglang.launch_server {tmp_path}", "***"]


@pytest.mark.parametrize("becomes_ready", [True, False])
def test_the_file_with_the_key_is_gone_once_sglang_is_ready_or_has_ended(
    tmp_path, monkeypatch, becomes_ready
):
    monkeypatch.setenv("OPENJEV_MODEL", str(tmp_path))
    monkeypatch.setenv("OPENJEV_BACKEND_API_KEY", "sesame")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def holding_keys():
        return [path for path in tmp_path.rglob("*.yaml") if "sesame" in path.read_text()]

    async def run(*, when_ready, **_parts):
        assert len(holding_keys()) == 1
        if becomes_ready:
            when_ready()
            assert holding_keys() == []
        return 0

    monkeypatch.setattr(serving, "run", run)
    python = write_interpreter(tmp_path / "python")
    options = Options(
        sglang_python=str(python), frontend="python", backend_port=free_port(), engine_only=True
    )
    assert told(options)[0] == 0
    assert holding_keys() == []


def test_a_key_that_the_rust_front_ignores_is_told_of(monkeypatch):
    monkeypatch.setenv("OPENJEV_BACKEND_API_KEY", "sesame")
    for frontend, warned in (("rust", True), ("python", False)):
        options = Options(sglang_python="python", frontend=frontend)
        warnings = serving._warnings(options, configure(options))
        assert any("checks no key" in warning for warning in warnings) is warned


def test_the_engine_alone_is_probed_itself(started):
    port = free_port()
    code, lines = told(Options(engine_only=True, backend_port=port))
    assert code == 7
    assert started["engine"] == ("engine", port)
    assert started["api"] is started["lifespan"] is None
    assert started["url"] == f"http://127.0.0.1:{port}"
    assert lines == [
        "Model   Qwen/Qwen2.5-Coder-1.5B-Instruct (profile embedded)",
        f"Engine  http://127.0.0.1:{port}",
    ]


@pytest.mark.parametrize("which", ["port", "backend_port"])
def test_a_taken_port_is_told_before_weights_are_fetched(started, monkeypatch, which):
    monkeypatch.setattr(serving, "_embedded_engine", lambda *_: pytest.fail("too early"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"port": free_port(), "backend_port": free_port()}
        ports[which] = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"--{which.replace('_', '-')}"):
            told(Options(**ports))


def test_of_two_taken_ports_the_apis_is_named(started):
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as other:
        port, backend_port = (taken.getsockname()[1] for taken in (one, other))
        with pytest.raises(LaunchError, match=f"Port {port} "):
            told(Options(port=port, backend_port=backend_port))


def test_a_server_that_is_not_installed_is_told_before_anything_starts(started, monkeypatch):
    monkeypatch.setattr("backend.serving.servers.find_spec", lambda name: None)
    with pytest.raises(LaunchError, match=rf"uvicorn is not installed.*{sys.executable} -m pip"):
        told(Options(server="uvicorn", port=free_port(), backend_port=free_port()))
    assert started == {}


def test_an_address_setting_without_effect_is_told(started, monkeypatch):
    monkeypatch.setenv("OPENJEV_BACKEND_URL", "http://gpu:30000")
    _, lines = told(Options(engine_only=True, backend_port=free_port()))
    assert lines[0].startswith("Warning: OPENJEV_BACKEND_URL has no effect")


@pytest.mark.parametrize(
    ("host", "key", "warned"),
    [
        ("127.0.0.1", None, False),
        ("localhost", None, False),
        ("[::1]", None, False),
        (EVERYWHERE, None, True),
        ("api.example", None, True),
        (EVERYWHERE, "secret", False),
    ],
)
def test_an_open_api_without_a_key_is_warned_of(host, key, warned, monkeypatch):
    if key:
        monkeypatch.setenv("OPENJEV_API_KEY", key)
    options = Options(host=host)
    warnings = serving._warnings(options, configure(options))
    assert any("without a key" in warning for warning in warnings) is warned


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        (EVERYWHERE, "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("[::1]", "http://[::1]:80"),
        ("api.example", "http://api.example:80"),
    ],
)
def test_the_api_is_probed_where_it_can_be_reached(host, address):
    assert serving._address(serving._reachable(host), 80) == address


def test_the_embedded_engine_is_built_from_verified_weights(tiny_gguf, monkeypatch):
    monkeypatch.setenv("OPENJEV_MODEL", str(tiny_gguf))
    engine = serving._embedded_engine(configure(Options()), 31000)
    assert engine.group is None  # not started


def test_missing_weights_and_memory_are_reasons_not_to_start(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENJEV_MODEL", str(tmp_path / "missing.gguf"))
    with pytest.raises(LaunchError, match=r"missing\.gguf"):
        serving._embedded_engine(configure(Options()), 31000)
    monkeypatch.delenv("OPENJEV_MODEL")
    monkeypatch.setattr("backend.embedded.memory.available_memory", lambda: 10**6)
    monkeypatch.setattr(
        "backend.embedded.weights.locate", lambda config: pytest.fail("fetched before the check")
    )
    with pytest.raises(LaunchError, match="free memory"):
        serving._embedded_engine(configure(Options()), 31000)
