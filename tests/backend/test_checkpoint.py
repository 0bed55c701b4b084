"""Where a checkpoint's tokenizer is found, and what is said where it is not."""

from pathlib import Path

import huggingface_hub
import pytest

from backend import checkpoint
from backend.checkpoint import expected_directory, is_pinned, local_directory, tokenizer_directory
from backend.config import load_config
from backend.errors import TokenizerError
from backend.profiles import PROFILES


def configured(**environ):
    config, problems = load_config({"OPENJEV_PROFILE": "qwen36", **environ})
    assert not problems
    return config


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the hub's client, with what it was asked."""
    asked = []

    def snapshot_download(model, *, revision, allow_patterns):
        asked.append((model, revision, allow_patterns))
        if model == "some/where":
            raise OSError("no route")
        return f"/hub/{model}/{len(asked)}"

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    checkpoint._fetched.cache_clear()
    yield asked
    checkpoint._fetched.cache_clear()


def test_a_directory_is_taken_as_it_is(tmp_path, monkeypatch, hub):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    config = configured(OPENJEV_MODEL="~/model")
    assert tokenizer_directory(config) == expected_directory(config) == tmp_path / "model"
    assert is_pinned(config)
    assert hub == []


def test_a_relative_directory_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    assert local_directory("model") == tmp_path / "model"


def test_of_a_hub_model_only_small_files_are_fetched_at_its_revision(hub):
    config = configured()
    directory = tokenizer_directory(config)
    ((model, revision, patterns),) = hub
    assert directory == Path(f"/hub/{model}/1")
    assert (model, revision) == (config.model, config.revision)
    weights = ("model-00001-of-00004.safetensors", "pytorch_model.bin", "model.gguf")
    assert not any(Path(name).match(pattern) for name in weights for pattern in patterns)
    for name in ("tokenizer.json", "chat_template.jinja", "merges.txt", "tokenizer.model"):
        assert any(Path(name).match(pattern) for pattern in patterns)


def test_engine_and_api_get_one_directory_even_if_the_branch_moves_on(hub):
    config = configured(OPENJEV_MODEL="some/model")
    assert tokenizer_directory(config) == tokenizer_directory(config)
    assert len(hub) == 1


def test_what_the_hub_does_not_give_is_told_with_ways_out(hub):
    config = configured(OPENJEV_MODEL="some/where", OPENJEV_REVISION="v1")
    with pytest.raises(TokenizerError) as failed:
        tokenizer_directory(config)
    message = str(failed.value)
    for part in ("some/where at revision v1", "no route", "OPENJEV_REVISION", "HF_TOKEN"):
        assert part in message


@pytest.mark.parametrize("model", ["/no/such/place", "~/no/such/place", "./no-such", "a/b/c"])
def test_a_path_where_nothing_is_is_not_looked_for_on_the_hub(hub, model):
    with pytest.raises(TokenizerError, match="no such directory"):
        tokenizer_directory(configured(OPENJEV_MODEL=model))
    assert hub == []


def test_a_file_is_no_checkpoint_for_sglang():
    with pytest.raises(TokenizerError, match="SGLang profiles need the directory"):
        local_directory(__file__)


def test_only_a_commit_is_a_pin():
    assert is_pinned(configured())
    assert not is_pinned(configured(OPENJEV_MODEL="some/model"))
    assert not is_pinned(configured(OPENJEV_REVISION="main"))


@pytest.mark.parametrize(
    "profile", [p for p in PROFILES.values() if p.engine == "sglang"], ids=lambda p: p.name
)
def test_every_profile_for_sglang_is_pinned_and_its_place_known_without_a_network(profile, hub):
    config = configured(OPENJEV_PROFILE=profile.name)
    assert is_pinned(config)
    directory = expected_directory(config)
    assert directory is not None
    assert directory.parts[-3:] == (
        f"models--{str(config.model).replace('/', '--')}",
        "snapshots",
        config.revision,
    )
    assert hub == []


def test_only_the_hub_knows_where_a_branch_will_be():
    assert expected_directory(configured(OPENJEV_MODEL="some/model")) is None
