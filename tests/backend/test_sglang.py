"""SGLang's command: the interpreter, the flags of a profile, the environment, the key."""

import json
import os
import sys
from pathlib import Path

import pytest

from backend.config import load_config
from backend.launch import LaunchError
from backend.sglang import installed_version, interpreter, key_file, sglang_command
from tests.support.interpreter import write_interpreter

KEYS = {"OPENJEV_API_KEY": "public-key", "OPENJEV_BACKEND_API_KEY": "engine-key"}
HYBRID = ["qwen36", "qwen36-fp8"]


def command(*extra, environ=None, key_file=None, **settings):
    variables = {"OPENJEV_PROFILE": "qwen36", **settings, **(environ or {})}
    config, problems = load_config(variables)
    assert not [problem for problem in problems if problem.fatal]
    return sglang_command(
        config,
        python=Path("/opt/sglang/bin/python"),
        tokenizer="/tokenizer",
        port=31000,
        extra=extra,
        key_file=key_file,
        environ=variables,
    )


def options(built):
    """The flags with their value, or `None`; each must be there once."""
    words = built.argv[3:]
    found = {}
    for word, following in zip(words, (*words[1:], "--"), strict=True):
        if word.startswith("--"):
            assert word not in found
            found[word] = None if following.startswith("--") else following
    return found


def test_a_profile_decides_model_name_and_revision_and_we_the_address():
    built = command()
    assert built.argv[:3] == ("/opt/sglang/bin/python", "-m", "sglang.launch_server")
    expected = {
        "--model-path": "nvidia/Qwen3.6-35B-A3B-NVFP4",
        "--revision": "1355db6a052410cfd62085d94b58866fd0f2c3c5",
        "--served-model-name": "Qwen/Qwen3.6-35B-A3B",
        "--tokenizer-path": "/tokenizer",
        "--host": "127.0.0.1",
        "--port": "31000",
        "--enable-metrics": None,
        "--cuda-graph-backend-prefill": "breakable",
    }
    assert options(built).items() >= expected.items()


def test_the_context_is_longer_than_the_longest_input():
    assert options(command())["--context-length"] == "33024"
    assert options(command(OPENJEV_MAX_INPUT_TOKENS="1000"))["--context-length"] == "1256"


@pytest.mark.parametrize("profile", HYBRID)
def test_models_with_recurrent_state_keep_it_for_the_branches(profile):
    found = options(command(OPENJEV_PROFILE=profile))
    assert found["--mamba-radix-cache-strategy"] == "extra_buffer"


def test_a_plain_dense_model_gets_no_flag_for_recurrent_state():
    assert not [flag for flag in options(command(OPENJEV_PROFILE="qwen3-8b")) if "mamba" in flag]


@pytest.mark.parametrize("profile", [*HYBRID, "qwen3-8b"])
def test_no_request_of_sglangs_own_meets_ours(profile):
    built = command(
        OPENJEV_PROFILE=profile, environ={"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "1"}
    )
    assert "--skip-server-warmup" in options(built)
    assert built.environment["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "0"


def test_a_local_checkpoint_has_no_revision_and_an_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path.parent)
    found = options(command(OPENJEV_MODEL=f"./{tmp_path.name}", OPENJEV_REVISION="main"))
    assert found["--model-path"] == str(tmp_path)
    assert "--revision" not in found


def test_extra_flags_replace_ours_and_are_never_doubled():
    built = command(
        "--kv-cache-dtype=auto",
        "--mamba-scheduler-strategy",
        "no_buffer",
        "--tp",
        "2",
        "--dtype=half",
    )
    found = options(built)
    assert found["--kv-cache-dtype"] == "auto"
    assert found["--mamba-radix-cache-strategy"] == "no_buffer"
    assert (found["--tp-size"], found["--dtype"]) == ("2", "half")


@pytest.mark.parametrize("flag", ["--disable-radix-cache", "stray"])
def test_a_refused_flag_stops_the_start(flag):
    with pytest.raises(LaunchError, match=flag):
        command(flag)


def test_a_context_too_short_for_the_settings_is_told_before_the_model_is_loaded():
    with pytest.raises(LaunchError, match=r"--context-length is 4096, .* need 32776\."):
        command("--context-length", "4096")
    assert options(command("--context-length", "32776"))["--context-length"] == "32776"


@pytest.mark.parametrize(("frontend", "value"), [("rust", "1"), ("python", "0")])
def test_the_environment_chooses_the_front(frontend, value):
    built = command(OPENJEV_FRONTEND=frontend, environ={"SGLANG_RUST_SERVER": "maybe"})
    assert built.environment["SGLANG_RUST_SERVER"] == value


def test_the_environment_shortens_crashes_and_finds_the_tools_beside_the_interpreter():
    environment = command(environ={"PATH": "/usr/bin", "HF_HOME": "/models"}).environment
    assert environment["PATH"] == f"/opt/sglang/bin{os.pathsep}/usr/bin"
    assert environment["HF_HOME"] == "/models"
    for name in ("CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS", "PYSPY_DUMP_BEFORE_CRASH"):
        assert environment[f"SGLANG_{name}"] == "0"
    assert environment["SGLANG_REQUEST_STATE_WAIT_TIMEOUT"] == "1"
    assert float(environment["SGLANG_TIMEOUT_KEEP_ALIVE"]) > 3


def test_what_the_user_set_for_sglang_stays():
    environment = command(environ={"SGLANG_TIMEOUT_KEEP_ALIVE": "9"}).environment
    assert environment["SGLANG_TIMEOUT_KEEP_ALIVE"] == "9"


def test_no_key_is_handed_on_in_arguments_or_environment():
    built = command(key_file=Path("/run/key.yaml"), **KEYS)
    shown = [*built.argv, *built.environment.values()]
    assert not [text for text in shown for key in KEYS.values() if key in text]
    assert options(built)["--config"] == "/run/key.yaml"
    assert set(built.secrets) == set(KEYS.values())
    assert not [name for name in built.environment if name.startswith("OPENJEV_")]


def test_the_key_is_in_a_file_of_this_user_only_while_needed():
    config, _ = load_config({**KEYS, "OPENJEV_FRONTEND": "python"})
    with key_file(config) as path:
        assert json.loads(path.read_text()) == {"api-key": "engine-key"}
        assert path.suffix == ".yaml"  # or SGLang refuses it
        assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 == 0
    assert not path.parent.exists()


@pytest.mark.parametrize("environ", [{"OPENJEV_FRONTEND": "python"}, KEYS])
def test_without_a_key_or_with_the_rust_front_that_ignores_it_there_is_no_file(environ):
    config, _ = load_config(environ)
    with key_file(config) as path:
        assert path is None


def test_a_key_that_sglang_would_take_for_a_flag_is_refused():
    config, _ = load_config({"OPENJEV_FRONTEND": "python", "OPENJEV_BACKEND_API_KEY": "-key"})
    with pytest.raises(LaunchError, match="OPENJEV_BACKEND_API_KEY begins with '-'") as refused:
        with key_file(config):
            pass
    assert "-key" not in str(refused.value)


def test_an_interpreter_is_found_by_path_or_name_and_stays_in_its_environment(
    tmp_path, monkeypatch
):
    real = write_interpreter(tmp_path / "real")
    link = tmp_path / "bin" / "python"
    link.parent.mkdir()
    link.symlink_to(real)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(link.parent))
    assert interpreter("bin/python") == interpreter("python") == link


def test_an_environment_named_instead_of_its_interpreter_gets_a_hint(tmp_path):
    write_interpreter(tmp_path / "bin" / "python")
    with pytest.raises(LaunchError, match=rf"Did you mean {tmp_path}/bin/python\?"):
        interpreter(str(tmp_path))
    with pytest.raises(LaunchError, match="no program that can be run"):
        interpreter(str(tmp_path / "missing"))


def test_the_interpreter_is_asked_for_its_sglang(tmp_path):
    assert installed_version(write_interpreter(tmp_path / "python", "0.5.23")) == "0.5.23"


def test_what_an_interpreter_says_at_every_start_is_not_taken_for_its_answer(tmp_path):
    noisy = write_program(tmp_path / "python", r"printf 'caf\351\n'; echo 0.5.23")
    assert installed_version(noisy) == "0.5.23"


def test_an_interpreter_without_sglang_is_told_how_to_get_it(tmp_path):
    with pytest.raises(LaunchError, match=r"has no SGLang\. .* install sglang==0\.5\.19"):
        installed_version(write_interpreter(tmp_path / "python", ""))


def test_the_question_for_the_version_works_in_a_real_interpreter():
    with pytest.raises(LaunchError, match="has no SGLang"):
        installed_version(Path(sys.executable))


@pytest.mark.parametrize("program", ["/bin/false", "/etc/hostname"])
def test_what_is_no_python_is_told(program):
    with pytest.raises(LaunchError, match=f"{program}, which does not work as a Python"):
        installed_version(Path(program))


def test_why_a_program_does_not_work_is_told_in_its_own_last_words(tmp_path):
    program = write_program(
        tmp_path / "python", "echo first >&2; echo 'No such option: -c' >&2; exit 2"
    )
    with pytest.raises(LaunchError) as refused:
        installed_version(program)
    assert "interpreter: it ended with exit code 2, No such option: -c. Name" in str(refused.value)


def test_a_program_that_never_answers_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("backend.sglang._ASK_SECONDS", 0.1)
    with pytest.raises(LaunchError, match=r"it gave no answer within 0\.1 seconds\. Name"):
        installed_version(write_program(tmp_path / "python", "exec sleep 60"))


def write_program(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
