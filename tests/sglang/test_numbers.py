"""What SGLang answers is what the model says: compared with `transformers` on the same weights."""

import asyncio

import pytest

from backend.client import EngineClient
from backend.protocol import Call
from backend.token_ids import TokenIds
from tests.sglang.prompts import IDS, tokens

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

LABELS = range(3, IDS, 7)
TOLERANCE = 1e-3
LENGTHS = (1, 17, 700, 3000)
PREFIX = 1234
SUFFIXES = (1, 40, 200)


def deadline(seconds=60.0):
    return asyncio.get_running_loop().time() + seconds


PROMPTS = [tokens(count, seed=count) for count in LENGTHS]
BRANCHES = [tokens(PREFIX, seed=0) + tokens(count, seed=-count) for count in SUFFIXES]


@pytest.fixture(scope="module")
def expected(reference):
    """Log-probabilities of all tokens, for every prompt and branch."""
    found = reference(PROMPTS + BRANCHES)
    return found[: len(PROMPTS)], found[len(PROMPTS) :]


async def ask(client, prompt, rid):
    call = Call(TokenIds.of(prompt), LABELS, rid)
    (answer,) = await client.label_logprobs([call], deadline=deadline(), routing_key="numbers")
    return answer


def assert_same(found, expected):
    wanted = [expected[label] for label in LABELS]
    assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) < TOLERANCE


async def test_log_probabilities_are_the_models_own(client, expected):
    for prompt, wanted in zip(PROMPTS, expected[0], strict=True):
        found = await ask(client, prompt, f"numbers.{len(prompt):04}")
        assert_same(found.logprobs, wanted)
        assert (found.prompt_tokens, found.completion_tokens) == (len(prompt), 1)


async def test_branches_reuse_the_whole_prefix_and_say_the_same(client, engine, expected):
    await ask(client, tokens(PREFIX, seed=0), "branches.warm")
    found = await asyncio.gather(
        *(ask(client, branch, f"branches.{n:03}") for n, branch in enumerate(BRANCHES))
    )
    for answer, wanted in zip(found, expected[1], strict=True):
        assert_same(answer.logprobs, wanted)
    cached = PREFIX if engine.front == "python" else None  # the Rust front does not say
    assert [answer.cached_tokens for answer in found] == [cached] * len(BRANCHES)


@pytest.mark.process
async def test_the_embedded_engine_says_the_same(client, tiny_engine):
    embedded = EngineClient(tiny_engine)
    for prompt in PROMPTS:
        rid = f"embedded.{len(prompt):04}"
        both = [await ask(one, prompt, rid) for one in (client, embedded)]
        pairs = zip(*(answer.logprobs for answer in both), strict=True)
        assert max(abs(a - b) for a, b in pairs) < TOLERANCE
    await embedded.aclose()
