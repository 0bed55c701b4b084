"""Which engines are taken into use, and what is said of the others."""

import asyncio
import dataclasses
import re

import pytest

from backend.client import EngineClient
from backend.config import load_config
from backend.errors import EngineError, EngineMismatch, EngineUnavailable
from backend.fit import HOPELESS, caveats, require_fit, why_hopeless
from backend.tokenizer import ChatTokenizer
from backend.vocabulary import vocabulary_from_gguf
from tests.support.fake_engine import FakeEngine, Fault, serve_fake_engine


def soon():
    return asyncio.get_running_loop().time() + 5


@pytest.fixture(scope="module")
def tokenizer(tiny_gguf):
    return ChatTokenizer(vocabulary_from_gguf(tiny_gguf))


async def fit(tokenizer, **changes):
    """What `require_fit` says of a fake engine that fits but for `changes`."""
    fault = changes.pop("fault", Fault.NONE)
    when = changes.pop("when", None)
    facts = {
        "model": "tiny/random",
        "context_length": 8192 + 6,
        "vocabulary_size": tokenizer.vocabulary_size,
        **changes,
    }
    async with serve_fake_engine(FakeEngine(**facts)) as engine:
        engine.play(fault, when=when)
        config, _ = load_config({"OPENJEV_BACKEND_URL": engine.url})
        config = dataclasses.replace(config, served_model_name="tiny/random")
        client = EngineClient(engine.url)
        client.vocabulary_size = tokenizer.vocabulary_size
        try:
            return await require_fit(client, tokenizer, config, deadline=soon()), engine
        finally:
            await client.aclose()
            assert engine.killed_by == []


@pytest.mark.parametrize("front", ["python", "rust"])
async def test_an_engine_that_fits_is_described(tokenizer, front):
    described, _ = await fit(tokenizer, front=front)
    assert described.front == front
    assert described.model == "tiny/random"


async def test_no_call_of_a_check_shares_its_name_with_another_servers(tokenizer):
    """SGLang refuses a name that is in use, and two servers may start on one engine at once."""
    names = [call.rid for _ in range(2) for call in (await fit(tokenizer))[1].calls]
    assert len(set(names)) == len(names) > 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "other/model"}, "serves 'other/model'.*OPENJEV_SERVED_MODEL_NAME"),
        ({"context_length": 4096}, r"fewer than 4090 tokens.*--context-length 8198"),
        ({"context_length": 8192 + 5}, "Set that to 8191 or less"),
        ({"info": {"disable_radix_cache": True}}, "--disable-radix-cache.*start that without"),
        ({"info": {"allow_auto_truncate": True}}, "--allow-auto-truncate"),
        ({"info": {"speculative_algorithm": "EAGLE"}}, "--speculative-algorithm"),
        ({"api_key": "k3y"}, "refused the key. Set OPENJEV_BACKEND_API_KEY"),
        ({"broken": {"/v1/models": Fault.NO_ROUTE}}, "not an engine that speaks SGLang's protocol"),
        ({"fault": Fault.MISSING}, "no label log-probabilities.*SGLang 0.5.19"),
        ({"fault": Fault.NAN}, "--moe-runner-backend"),
        ({"tokenize": lambda text: [1, 2, 3]}, "other tokens than the tokenizer"),
        ({"tokenize": lambda text: []}, "OPENJEV_MODEL or OPENJEV_REVISION"),
    ],
)
async def test_an_engine_that_does_not_fit_is_refused_with_what_to_change(tokenizer, changes, said):
    with pytest.raises(HOPELESS) as caught:
        await fit(tokenizer, **changes)
    config, _ = load_config({"OPENJEV_BACKEND_URL": "http://127.0.0.1:1"})
    why = why_hopeless(caught.value, config)
    assert re.search(said, why)
    assert "http://127.0.0.1" in why
    assert why.endswith(".")


@pytest.mark.parametrize("fault", [Fault.NAN, Fault.REFUSED])
async def test_a_single_call_that_fails_is_no_mismatch(tokenizer, fault):
    """It is hopeless at a first look, which is the caller's to know; later it may pass."""
    with pytest.raises(EngineError):
        await fit(tokenizer, fault=fault)


async def test_a_vocabulary_smaller_than_the_tokenizers_is_found_before_an_input_kills(tokenizer):
    size = tokenizer.vocabulary_size
    with pytest.raises(EngineMismatch, match=f"fewer than the {size} tokens.*OPENJEV_MODEL"):
        await fit(tokenizer, vocabulary_size=size - 1)


async def test_a_vocabulary_larger_than_the_tokenizers_is_usual(tokenizer):
    await fit(tokenizer, vocabulary_size=tokenizer.vocabulary_size + 100)


async def test_the_engines_tokenizer_is_compared_on_text_and_control_tokens(tokenizer):
    asked = []

    def tokenize(text):
        asked.append(text)
        return tokenizer._trusted.encode(text, add_special_tokens=False).ids

    await fit(tokenizer, tokenize=tokenize)
    (text,) = asked
    assert "<|im_start|>user" in text
    assert "東京" in text


@pytest.mark.parametrize("fault", [Fault.NO_ROUTE, Fault.CRASHED])
async def test_an_engine_without_a_tokenizer_is_not_asked_for_more(tokenizer, fault):
    """SGLang answers 500 where it runs with --skip-tokenizer-init, and its Rust front 404."""
    await fit(tokenizer, broken={"/tokenize": fault})


@pytest.mark.parametrize("fault", [Fault.NOT_READY, Fault.CRASHED, Fault.HALF, Fault.ABORTED])
async def test_what_may_pass_is_not_a_mismatch(tokenizer, fault):
    with pytest.raises(EngineError):
        await fit(tokenizer, fault=fault)


async def test_a_tokenizer_that_is_not_ready_yet_is_waited_for(tokenizer):
    with pytest.raises(EngineUnavailable):
        await fit(tokenizer, broken={"/tokenize": Fault.NOT_READY})


@pytest.mark.parametrize(
    ("front", "key", "longest", "said"),
    [
        ("rust", "k3y", 9000, ["Rust front ignores OPENJEV_BACKEND_API_KEY"]),
        ("rust", None, 9000, []),
        ("python", "k3y", 9000, []),
        ("router", "k3y", None, ["at least 8198 tokens"]),
    ],
)
async def test_what_cannot_be_seen_is_warned_of(tokenizer, front, key, longest, said):
    described, _ = await fit(tokenizer)
    config, _ = load_config({"OPENJEV_BACKEND_API_KEY": key or ""})
    described = dataclasses.replace(described, front=front, max_input_tokens=longest)
    found = caveats(described, config)
    assert len(found) == len(said)
    for warning, part in zip(found, said, strict=True):
        assert part in warning
        assert "k3y" not in warning
