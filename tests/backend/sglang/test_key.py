"""SGLang's key: in a file of this user only, and only where it counts."""

import json

import pytest

from backend.config import load_config
from backend.launch import LaunchError
from backend.sglang.key import key_file

KEYS = {"OPENJEV_API_KEY": "public-key", "OPENJEV_BACKEND_API_KEY": "engine-key"}


def test_the_key_is_in_a_file_of_this_user_only_while_needed():
    config, _ = load_config({**KEYS, "OPENJEV_FRONTEND": "python"})
    with key_file(config) as path:
        assert json.loads(path.read_text()) == {"api-key": "engine-key"}
        assert path.suffix == ".yaml"  # or SGLang refuses it
        assert path.stat().st_mode & 0o077 == 0
    assert not path.exists()


def test_a_file_that_the_engines_keeper_has_removed_is_not_missed():
    config, _ = load_config({**KEYS, "OPENJEV_FRONTEND": "python"})
    with key_file(config) as path:
        path.unlink()


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
