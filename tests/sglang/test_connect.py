"""Connecting to an SGLang that does not suit: the command ends and says what to change."""

import json
import shutil

import pytest

from tests.sglang.programs import MODEL_NAME, settings, sglang
from tests.support.loopback import free_port
from tests.support.running import COMMAND, Running

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]
# the Rust front has no route that would show it
ON_PYTHON = pytest.mark.parametrize("engine", ["python"], indirect=True)


def connect(url, environ):
    """Run the command until it ends by itself; give its exit code and what it said."""
    command = Running([*COMMAND, "--port", str(free_port()), "--connect", url], environ)
    try:
        return command.ends(60), command.output
    finally:
        command.stop()


@pytest.fixture
def other_tokens(checkpoint, tmp_path):
    """The checkpoint with another tokenizer of the same size: two tokens have changed places."""
    copy = shutil.copytree(checkpoint, tmp_path / "other")
    tokenizer = json.loads((copy / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["e"] = vocabulary["e"], vocabulary["a"]
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return copy


@pytest.fixture
def more_tokens(checkpoint, tmp_path):
    """The checkpoint with a tokenizer that has more tokens than the model."""
    copy = shutil.copytree(checkpoint, tmp_path / "more")
    tokenizer = json.loads((copy / "tokenizer.json").read_text(encoding="utf-8"))
    last = max(token["id"] for token in tokenizer["added_tokens"])
    special = dict(tokenizer["added_tokens"][-1], content="<|more|>", id=last + 1)
    tokenizer["added_tokens"].append(special)
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return copy


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"OPENJEV_SERVED_MODEL_NAME": "other/model"}, f"serves '{MODEL_NAME}'"),
        ({"OPENJEV_MAX_INPUT_TOKENS": "8192"}, "OPENJEV_MAX_INPUT_TOKENS is 8192"),
    ],
    ids=["model", "context"],
)
def test_what_does_not_fit_is_refused(engine, checkpoint, change, said):
    code, output = connect(engine.url, settings(checkpoint, **change))
    assert code == 1
    assert said in output


def test_a_tokenizer_that_is_too_large_is_refused(engine, more_tokens):
    code, output = connect(engine.url, settings(more_tokens))
    assert code == 1
    assert "tokens of the tokenizer" in output


@ON_PYTHON
def test_another_tokenizer_of_the_same_size_is_refused(engine, other_tokens):
    code, output = connect(engine.url, settings(other_tokens))
    assert code == 1
    assert "turns a text into other tokens" in output


@ON_PYTHON
def test_a_wrong_key_is_refused_and_not_shown(engine, checkpoint):
    code, output = connect(engine.url, settings(checkpoint, OPENJEV_BACKEND_API_KEY="wrong-key"))
    assert code == 1
    assert "OPENJEV_BACKEND_API_KEY" in output
    assert "wrong-key" not in output


def test_an_engine_without_its_cache_is_refused(checkpoint):
    with sglang(checkpoint, "python", "--disable-radix-cache") as engine:
        code, output = connect(engine.url, settings(checkpoint))
    assert code == 1
    assert "--disable-radix-cache" in output
