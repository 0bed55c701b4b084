"""The command line, applied to the settings, and its contradictions."""

import pytest
from django.conf import settings

from backend.config import load_config
from backend.launch import LaunchError
from backend.options import Options, configure, environment, require_consistent
from tests.support.loopback import free_port

PYTHON = "/opt/sglang/bin/python"


@pytest.fixture(autouse=True)
def unchanged_settings(monkeypatch):
    monkeypatch.setattr(settings, "OPENJEV", settings.OPENJEV)
    monkeypatch.setattr(settings, "OPENJEV_PROBLEMS", settings.OPENJEV_PROBLEMS)
    for name in ("OPENJEV_PROFILE", "OPENJEV_BACKEND_URL", "OPENJEV_FRONTEND"):
        monkeypatch.delenv(name, raising=False)


def consistent(**options):
    chosen = Options(**options)
    require_consistent(chosen, configure(chosen))


def test_the_command_line_is_applied_to_the_settings():
    config = configure(Options(profile="embedded-0.5b", backend_port=31000))
    assert settings.OPENJEV is config
    assert config.profile == "embedded-0.5b"
    assert config.served_model_name == "Qwen/Qwen2.5-Coder-0.5B-Instruct"
    assert config.backend_url == "http://127.0.0.1:31000"


def test_without_a_profile_the_environments_holds(monkeypatch):
    monkeypatch.setenv("OPENJEV_PROFILE", "qwen36")
    assert configure(Options()).profile == "qwen36"


def test_a_variable_still_overrides_the_profile_of_the_command_line(monkeypatch):
    monkeypatch.setenv("OPENJEV_MAX_INPUT_TOKENS", "777")
    assert configure(Options(profile="embedded")).max_input_tokens == 777


def test_naming_an_sglang_means_the_model_for_a_b200_unless_another_is_chosen(monkeypatch):
    assert configure(Options(sglang_python=PYTHON)).profile == "qwen36"
    assert configure(Options(sglang_python=PYTHON, profile="qwen3-8b")).profile == "qwen3-8b"
    monkeypatch.setenv("OPENJEV_PROFILE", "qwen36-fp8")
    assert configure(Options(sglang_python=PYTHON)).profile == "qwen36-fp8"


def test_the_front_of_the_command_line_goes_before_the_environments(monkeypatch):
    monkeypatch.setenv("OPENJEV_FRONTEND", "rust")
    assert configure(Options(frontend="python")).frontend == "python"


def test_connecting_sets_the_engines_address():
    assert configure(Options(connect="http://gpu:30000/")).backend_url == "http://gpu:30000"


def test_an_address_that_is_none_names_the_option():
    with pytest.raises(LaunchError, match="--connect is 'gpu:30000'"):
        configure(Options(connect="gpu:30000"))
    with pytest.raises(LaunchError, match="--connect is empty"):
        configure(Options(connect=""))


def test_other_problems_are_left_to_the_system_check(monkeypatch):
    monkeypatch.setenv("OPENJEV_MAX_ANSWERS", "1000")
    configure(Options())
    (problem,) = settings.OPENJEV_PROBLEMS
    assert problem.variable == "OPENJEV_MAX_ANSWERS"


def test_a_profile_for_sglang_needs_one_started_or_connected_to():
    with pytest.raises(LaunchError, match=r"needs SGLang\. .*--sglang-python PATH.*--connect URL"):
        consistent(profile="qwen36")
    consistent(profile="qwen36", sglang_python=PYTHON)
    consistent(profile="qwen36", connect="http://gpu:30000")
    consistent(profile="qwen36", print_command=True)


def test_an_embedded_profile_is_not_for_sglang():
    with pytest.raises(LaunchError, match=r"embedded is not for SGLang\. Leave --sglang-python"):
        consistent(profile="embedded", sglang_python=PYTHON)


def test_one_port_cannot_serve_both_api_and_engine():
    port = free_port()
    with pytest.raises(LaunchError, match=rf"both listen on port {port}"):
        consistent(port=port, backend_port=port)
    consistent(port=port, backend_port=port, engine_only=True)


@pytest.mark.parametrize("started", [{"sglang_python": PYTHON}, {"print_command": True}])
def test_nothing_is_started_where_an_engine_is_connected_to(started):
    with pytest.raises(LaunchError, match="With --connect nothing is started"):
        consistent(profile="qwen36", connect="http://gpu:30000", **started)


@pytest.mark.parametrize("given", [{"frontend": "rust"}, {"sglang_flags": ("--dtype", "half")}])
@pytest.mark.parametrize("where", [{}, {"connect": "http://gpu:30000", "profile": "qwen36"}])
def test_what_only_concerns_an_sglang_that_is_started_is_not_ignored(given, where):
    with pytest.raises(LaunchError, match="--frontend and what follows two dashes"):
        consistent(**where, **given)
    consistent(sglang_python=PYTHON, **given)


def test_workers_need_an_api_and_an_engine_call_each(monkeypatch):
    consistent(workers=64)
    with pytest.raises(LaunchError, match="Leave --workers out"):
        consistent(workers=2, engine_only=True)
    monkeypatch.setenv("OPENJEV_MAX_CONCURRENT_BRANCHES", "3")
    consistent(workers=3)
    with pytest.raises(LaunchError, match=r"OPENJEV_MAX_CONCURRENT_BRANCHES is 3\."):
        consistent(workers=4)


def test_other_processes_come_to_the_same_settings(monkeypatch):
    monkeypatch.setenv("OPENJEV_PROFILE", "embedded")
    monkeypatch.setenv("OPENJEV_MAX_QUESTIONS", "5")
    options = Options(profile="qwen3-8b", backend_port=31000, frontend="python")
    assert load_config(environment(options))[0] == configure(options)
