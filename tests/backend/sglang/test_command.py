"""SGLang's command: the flags of a profile, the environment, and no key."""

import os
from pathlib import Path

import pytest

from backend.config import load_config
from backend.launch import LaunchError
from backend.sglang.command import sglang_command

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


def test_how_long_the_queue_may_be_depends_on_the_front():
    flags = ("--max-queued-requests", "8")
    assert options(command(*flags, OPENJEV_FRONTEND="python"))["--max-queued-requests"] == "8"
    with pytest.raises(LaunchError, match=r"--max-queued-requests .* never answers a call"):
        command(*flags, OPENJEV_FRONTEND="rust")
    assert "--max-queued-requests" not in options(command(OPENJEV_FRONTEND="rust"))


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
