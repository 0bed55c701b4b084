"""The settings table: what is read, what is refused, and how it is told."""

from dataclasses import fields
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.core.management import call_command
from django.core.management.base import SystemCheckError

from backend.config import SETTINGS, Config, load_config
from backend.profiles import PROFILES


def problems_of(**environ: str) -> list[str]:
    _, problems = load_config({f"OPENJEV_{name}": value for name, value in environ.items()})
    return [problem.message for problem in problems]


def test_an_empty_environment_gives_the_default_profile_without_problems():
    config, problems = load_config({})
    assert problems == []
    assert config.profile == "embedded"
    assert config.served_model_name == PROFILES["embedded"].served_model_name
    assert (config.max_questions, config.max_answers) == (64, 64)


def test_every_field_of_the_config_has_exactly_one_variable():
    assert [s.name.lower() for s in SETTINGS] == [field.name for field in fields(Config)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PROFILE", "gpt"),
        ("MODEL", " "),
        ("MODEL", "--host"),
        ("REVISION", "-v"),
        ("SERVED_MODEL_NAME", "--port"),
        ("WEIGHTS_DIR", "relative/path"),
        ("WEIGHTS_DIR", __file__),
        ("WEIGHTS_DIR", "~nobody-of-that-name/weights"),
        ("BACKEND_URL", "127.0.0.1:30000"),
        ("BACKEND_URL", "http://127.0.0.1:notaport"),
        ("BACKEND_URL", "http://127.0.0.1:0"),
        ("BACKEND_URL", "http://[::1"),
        ("BACKEND_URL", "http://two..dots"),
        ("BACKEND_URL", f"http://{'x' * 64}"),
        ("BACKEND_URL", "http://host/?query=1"),
        ("BACKEND_URL", "http://user@host"),
        ("BACKEND_URL", "http://two words"),
        ("BACKEND_URL", " http://host"),
        ("BACKEND_URL", "http://host\x7f"),
        ("BACKEND_URL", "http://host\udcff"),
        ("MAX_QUESTIONS", "0"),
        ("MAX_QUESTIONS", "many"),
        ("MAX_ANSWERS", "256"),
        ("MAX_ANSWERS", "1"),
        ("MAX_BODY_BYTES", "-1"),
        ("REQUEST_TIMEOUT", "nan"),
        ("REQUEST_TIMEOUT", "inf"),
        ("TEMPERATURE", "0"),
        ("CONFIDENCE", "Entropy"),
    ],
)
def test_a_bad_value_is_named_with_the_variable_and_what_is_allowed(name, value):
    (message,) = problems_of(**{name: value})
    assert message.startswith(f"OPENJEV_{name} is {value!r}. It must be ")


@pytest.mark.parametrize("name", ["API_KEY", "BACKEND_API_KEY"])
def test_a_bad_key_is_named_but_never_shown(name):
    (message,) = problems_of(**{name: "top secret"})
    assert f"OPENJEV_{name}" in message
    assert "top secret" not in message


@pytest.mark.parametrize("name", ["API_KEY", "BACKEND_API_KEY"])
def test_a_short_key_is_warned_of_and_taken_all_the_same(name):
    config, (problem,) = load_config({f"OPENJEV_{name}": "@7@7@7@"})
    assert problem.message.startswith(f"OPENJEV_{name} has fewer than 8 characters.")
    assert "@7" not in problem.message
    assert not problem.fatal
    assert config.secrets == ("@7@7@7@",)
    assert problems_of(**{name: "@7@7@7@7"}) == []


def test_a_password_in_an_address_is_not_shown():
    (message,) = problems_of(BACKEND_URL="http://me:sesame@host")
    assert "OPENJEV_BACKEND_URL" in message
    assert "sesame" not in message


def test_every_problem_is_reported_at_once_and_fatal_ones_come_first():
    messages = problems_of(MAX_ANSWER="3", MAX_ANSWERS="x", TEMPERATURE="x")
    assert len(messages) == 3
    assert messages[-1].endswith("has no effect. Did you mean OPENJEV_MAX_ANSWERS?")


def test_an_unknown_variable_that_resembles_nothing_gets_no_suggestion():
    (message,) = problems_of(ZZZZZZ="3")
    assert message == "OPENJEV_ZZZZZZ is not a setting of OpenJev and has no effect."


def test_the_total_budget_must_hold_one_branch():
    (message,) = problems_of(MAX_TOTAL_INPUT_TOKENS="100", MAX_INPUT_TOKENS="200")
    assert "100" in message
    assert "200" in message


def test_a_variable_overrides_its_profile_and_a_profile_overrides_the_default():
    config, _ = load_config({"OPENJEV_PROFILE": "embedded-0.5b"})
    assert config.max_input_tokens == PROFILES["embedded-0.5b"].defaults["MAX_INPUT_TOKENS"]
    config, _ = load_config({"OPENJEV_PROFILE": "embedded-0.5b", "OPENJEV_MAX_INPUT_TOKENS": "99"})
    assert config.max_input_tokens == 99


def test_a_pinned_revision_belongs_to_the_profile_s_own_model_only():
    pinned, _ = load_config({"OPENJEV_PROFILE": "qwen36"})
    assert pinned.revision == PROFILES["qwen36"].revision
    other, _ = load_config({"OPENJEV_PROFILE": "qwen36", "OPENJEV_MODEL": "someone/else"})
    assert other.revision is None


def test_an_empty_value_counts_as_unset_and_a_home_directory_is_expanded():
    config, problems = load_config({"OPENJEV_MAX_ANSWERS": "", "OPENJEV_WEIGHTS_DIR": "~/weights"})
    assert problems == []
    assert config.max_answers == 64
    assert config.weights_dir == Path.home() / "weights"


def test_a_directory_that_cannot_be_looked_into_is_the_downloads_business():
    path = "/" + "x" * 300  # as a directory of another user: looking for it is an OSError
    config, problems = load_config({"OPENJEV_WEIGHTS_DIR": path})
    assert problems == []
    assert str(config.weights_dir) == path


def test_keys_do_not_show_when_a_config_is_printed():
    config, _ = load_config({"OPENJEV_API_KEY": "sesame", "OPENJEV_BACKEND_API_KEY": "sesame"})
    assert "sesame" not in repr(config)


def test_manage_check_fails_and_names_every_bad_variable(settings, capsys):
    _, settings.OPENJEV_PROBLEMS = load_config(
        {"OPENJEV_MAX_ANSWERS": "999", "OPENJEV_TEMPERATURE": "hot", "OPENJEV_TYPO": "1"}
    )
    with pytest.raises(SystemCheckError) as failure:
        call_command("check")
    for name in ("OPENJEV_MAX_ANSWERS", "OPENJEV_TEMPERATURE", "OPENJEV_TYPO"):
        assert name in str(failure.value)


def test_the_settings_of_this_process_come_from_its_environment():
    assert isinstance(django_settings.OPENJEV, Config)
