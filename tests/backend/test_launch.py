"""The engine's command line, and the look at ports before anything starts."""

import socket
import sys
from pathlib import Path

import pytest

from backend.config import load_config
from backend.launch import (
    LaunchError,
    embedded_command,
    engine_url,
    open_listener,
    require_free,
)
from tests.support.loopback import free_port

KEYS = {"OPENJEV_API_KEY": "public-key", "OPENJEV_BACKEND_API_KEY": "engine-key"}


def command(tmp_path, **environ):
    config, problems = load_config(environ)
    assert not problems
    return embedded_command(config, tmp_path / "model.gguf", port=31000, environ=environ)


def test_the_embedded_engine_gets_model_address_and_limits(tmp_path):
    argv = command(tmp_path, OPENJEV_MAX_INPUT_TOKENS="1000").argv
    assert argv[:3] == (sys.executable, "-m", "backend.embedded")
    options = dict(zip(argv[3::2], argv[4::2], strict=True))
    assert options == {
        "--gguf": str(tmp_path / "model.gguf"),
        "--host": "127.0.0.1",
        "--port": "31000",
        "--served-model-name": "Qwen/Qwen2.5-Coder-1.5B-Instruct",
        "--context-length": "1008",
        "--cache-bytes": str(2**30),
    }


def test_a_relative_path_is_made_absolute_because_the_engine_runs_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, _ = load_config({})
    argv = embedded_command(config, Path("m.gguf"), port=1).argv
    assert argv[argv.index("--gguf") + 1] == str(tmp_path / "m.gguf")


def test_keys_are_not_in_the_argument_list_and_the_public_one_stays_here(tmp_path):
    built = command(tmp_path, **KEYS)
    assert not any(key in argument for argument in built.argv for key in KEYS.values())
    assert built.environment["OPENJEV_BACKEND_API_KEY"] == "engine-key"
    assert "OPENJEV_API_KEY" not in built.environment
    assert set(built.secrets) == {"public-key", "engine-key"}
    assert "engine-key" not in repr(built)


def test_the_engine_runs_under_the_chosen_profile(tmp_path):
    built = command(tmp_path, OPENJEV_PROFILE="embedded-0.5b")
    assert built.environment["OPENJEV_PROFILE"] == "embedded-0.5b"


def test_engines_listen_on_loopback():
    assert engine_url(30000) == "http://127.0.0.1:30000"


def test_a_port_in_use_is_told_with_the_option_that_changes_it():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            LaunchError, match=rf"Port {port} on .* in use.* \(make run: BACKEND_PORT=N\)"
        ):
            require_free("127.0.0.1", port, "--backend-port")
    require_free("127.0.0.1", port, "--backend-port")


def test_an_address_that_is_not_ours_is_told():
    with pytest.raises(LaunchError, match="--host"):
        require_free("192.0.2.1", 8000, "--port")
    with pytest.raises(LaunchError, match="--host"):
        require_free("no such host.invalid", 8000, "--port")
    with pytest.raises(LaunchError, match=r"--host is 'a\.\.b', which can be no host"):
        require_free("a..b", 8000, "--port")


def test_a_port_that_needs_rights_is_told(monkeypatch):
    def refuse(self, address):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(LaunchError, match="above 1023 with --port"):
        require_free("127.0.0.1", 80, "--port")


@pytest.mark.parametrize(
    ("host", "family"),
    [
        ("127.0.0.1", socket.AF_INET),
        ("localhost", socket.AF_INET),
        ("::1", socket.AF_INET6),
        ("[::1]", socket.AF_INET6),
    ],
)
def test_a_listener_is_where_it_was_asked_for(host, family):
    with open_listener(host, free_port(), "--port") as listener:
        assert listener.family is family
        socket.create_connection(listener.getsockname()[:2]).close()
