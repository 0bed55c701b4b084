"""The engine's command, made ready and told beforehand: both are the same."""

import shlex
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from backend.config import load_config
from backend.engine_commands import foretold, ready_sglang, shell_text
from backend.launch import EngineCommand, LaunchError
from backend.options import Options
from tests.support.interpreter import write_interpreter


@pytest.fixture
def checkpoint(tmp_path):
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    return directory


def configured(**environ):
    config, problems = load_config({"OPENJEV_PROFILE": "qwen3-8b", **environ})
    assert not problems
    return config


def ready(python, config, *flags):
    lines = []
    options = Options(sglang_python=str(python), sglang_flags=flags)
    with ExitStack() as until_ready:
        command = ready_sglang(options, config, until_ready, lines.append)
        assert command == foretold(options, config)
    return command, lines


def test_what_is_started_is_what_is_told(tmp_path, checkpoint):
    python = write_interpreter(tmp_path / "python")
    config = configured(OPENJEV_MODEL=str(checkpoint))
    command, lines = ready(python, config, "--dtype", "half")
    assert command.argv[0] == str(python)
    assert command.argv[-2:] == ("--dtype", "half")
    assert command.argv[command.argv.index("--tokenizer-path") + 1] == str(checkpoint)
    assert lines == [f"SGLang  0.5.19, rust front, {python}"]


def test_another_version_than_the_tested_one_is_warned_of(tmp_path, checkpoint):
    python = write_interpreter(tmp_path / "python", "0.5.23")
    _, lines = ready(python, configured(OPENJEV_MODEL=str(checkpoint)))
    assert lines[0].startswith("Warning: SGLang 0.5.23 is not 0.5.19")


def test_weights_that_may_change_are_warned_of(tmp_path, checkpoint, monkeypatch):
    monkeypatch.setattr("backend.engine_commands.tokenizer_directory", lambda config: checkpoint)
    python = write_interpreter(tmp_path / "python")
    lines = []
    with ExitStack() as until_ready:
        command = ready_sglang(
            Options(sglang_python=str(python)),
            configured(OPENJEV_MODEL="some/model"),
            until_ready,
            lines.append,
        )
    assert lines[0].startswith("Warning: some/model is not pinned")
    assert "--revision" not in command.argv


def test_a_refused_flag_is_told_before_anything_is_asked_or_fetched(tmp_path):
    python = write_interpreter(tmp_path / "python", "")
    with pytest.raises(LaunchError, match="--disable-radix-cache"):
        ready(python, configured(), "--disable-radix-cache")


def test_a_missing_checkpoint_stops_both(tmp_path):
    python = write_interpreter(tmp_path / "python")
    config = configured(OPENJEV_MODEL=str(tmp_path / "missing"))
    with pytest.raises(LaunchError, match="no such directory"):
        ready(python, config)
    with pytest.raises(LaunchError, match="no such directory"):
        foretold(Options(sglang_python=str(python)), config)


def test_the_key_reaches_sglang_by_a_file_that_is_gone_afterwards(tmp_path, checkpoint):
    python = write_interpreter(tmp_path / "python")
    config = configured(
        OPENJEV_MODEL=str(checkpoint),
        OPENJEV_FRONTEND="python",
        OPENJEV_BACKEND_API_KEY="open-sesame",
    )
    with ExitStack() as until_ready:
        options = Options(sglang_python=str(python))
        command = ready_sglang(options, config, until_ready, lambda line: None)
        file = Path(command.argv[command.argv.index("--config") + 1])
        assert "open-sesame" in file.read_text()
    assert not file.exists()
    assert "--config '***'" in shell_text(foretold(options, config))


def test_what_is_told_needs_neither_sglang_nor_a_network():
    text = shell_text(foretold(Options(sglang_python="/nowhere/bin/python"), configured()))
    assert "/nowhere/bin/python -m sglang.launch_server" in text
    assert "--tokenizer-path /" in text
    unpinned = configured(OPENJEV_MODEL="some/model")
    assert "--tokenizer-path some/model" in shell_text(foretold(Options(), unpinned))


def test_without_an_interpreter_its_place_is_told():
    text = shell_text(foretold(Options(), configured()))
    assert "  PATH_TO_PYTHON -m sglang.launch_server" in text
    assert "PATH=/" not in text


def test_the_embedded_engine_is_told_without_its_weights(tmp_path):
    config, _ = load_config({"OPENJEV_WEIGHTS_DIR": str(tmp_path)})
    text = shell_text(foretold(Options(), config))
    assert f"--gguf {tmp_path}/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf" in text
    config, _ = load_config({"OPENJEV_MODEL": str(tmp_path / "own.gguf")})
    assert f"--gguf {tmp_path}/own.gguf" in shell_text(foretold(Options(), config))


def test_a_shell_runs_the_text_as_the_command_would_run():
    script = 'echo "$PATH|$ADDED|$DROPPED|$KEPT|$1|$2"'
    before = {"PATH": "/usr/bin:/bin", "DROPPED": "x", "KEPT": "k"}
    environment = {"PATH": "/my tools:/usr/bin:/bin", "ADDED": "a 'b'", "KEPT": "k"}
    command = EngineCommand(("/bin/sh", "-c", script, "name", "--flag", "a b"), environment, ())
    shown = subprocess.run(
        ["/bin/sh", "-c", shell_text(command, before)],
        env=before,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "/my tools:/usr/bin:/bin|a 'b'||k|--flag|a b\n"


def test_no_secret_is_shown_not_even_where_a_user_put_it():
    command = EngineCommand(("engine", "--label", "x=sesame"), {}, ("sesame",))
    assert shlex.split(shell_text(command, {})) == ["env", "\n", "engine", "\n", "--label", "x=***"]
