"""The client and what it knows of SGLang 0.5.19, on both of its fronts."""

import asyncio

import pytest

from backend.client import EngineClient
from backend.errors import EngineRejected, EngineUnavailable
from backend.protocol import Call, LabelLogprobs
from backend.token_ids import TokenIds
from tests.sglang.conftest import MAX_QUEUED
from tests.sglang.programs import CONTEXT_LENGTH, MODEL_NAME
from tests.sglang.prompts import tokens

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

LABELS = (7, 9)


def now():
    return asyncio.get_running_loop().time()


async def ask(client, prompt, rid="client.000"):
    call = Call(TokenIds.of(prompt), LABELS, rid)
    (answer,) = await client.label_logprobs([call], deadline=now() + 120, routing_key="client")
    return answer


async def test_it_is_described_as_what_it_is(client, engine):
    found = await client.describe(deadline=now() + 20)
    assert (found.model, found.front, found.version) == (MODEL_NAME, engine.front, "0.5.19")
    assert (found.context_length, found.max_input_tokens) == (CONTEXT_LENGTH, CONTEXT_LENGTH - 6)
    python = engine.front == "python"
    assert (found.has_abort, found.reports_cached) == (python, python)


async def test_it_is_healthy_until_its_scheduler_hangs(client, engine):
    assert await client.is_healthy(deadline=now() + 20)
    scheduler = engine.scheduler()
    scheduler.suspend()
    try:
        assert not await client.is_healthy(deadline=now() + 1)
    finally:
        scheduler.resume()
    assert await client.is_healthy(deadline=now() + 20)


async def test_asking_for_its_health_does_not_disturb_the_calls(client):
    """SGLang's own `/health` kills it as soon as its request meets one of ours in a batch."""

    async def call(worker):
        for n in range(20):
            await ask(client, tokens(20, seed=n), f"health.{worker}.{n:02}")

    async def look():
        return all([await client.is_healthy(deadline=now() + 60) for _ in range(50)])

    looked, *_ = await asyncio.gather(look(), *map(call, range(8)))
    assert looked


async def test_the_longest_input_is_answered_and_a_longer_one_is_not_sent(client):
    limit = (await client.describe(deadline=now() + 20)).max_input_tokens
    answer = await ask(client, tokens(limit - 1, seed=1))
    assert answer.prompt_tokens == limit - 1
    with pytest.raises(EngineRejected, match=f"fewer than {limit}"):
        await ask(client, tokens(limit, seed=1))  # the Python front would die of it
    assert (await ask(client, tokens(5, seed=2))).prompt_tokens == 5


async def test_what_it_refuses_by_itself_is_told_in_our_words(client):
    with pytest.raises(EngineRejected, match="context is too short") as refusal:
        await ask(client, tokens(CONTEXT_LENGTH + 1, seed=3))
    assert refusal.value.status == 400
    call = Call(TokenIds.of([1]), [10**6], "client.001")
    with pytest.raises(EngineRejected, match="outside its vocabulary"):
        await client.label_logprobs([call], deadline=now() + 20, routing_key="client")


async def test_the_python_front_asks_for_the_key_and_the_rust_front_ignores_it(engine):
    stranger = EngineClient(engine.url, api_key="another-key")
    try:
        if engine.front == "rust":
            assert (await ask(stranger, [1, 2])).prompt_tokens == 2
            return
        with pytest.raises(EngineRejected, match="OPENJEV_BACKEND_API_KEY") as refusal:
            await ask(stranger, [1, 2])
        assert refusal.value.status == 401
    finally:
        await stranger.aclose()


async def test_cancelled_calls_leave_the_engine_to_those_that_stay(client):
    await client.describe(deadline=now() + 20)
    prompts = [tokens(4000, seed=100 + n) for n in range(31)]
    began = now()
    await ask(client, prompts.pop())
    alone = now() - began
    calls = [
        asyncio.create_task(ask(client, prompt, f"cancel.{n:03}"))
        for n, prompt in enumerate(prompts)
    ]
    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    began = now()
    *cancelled, stays = calls
    for call in cancelled:
        call.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)
    assert (await stays).prompt_tokens == 4000
    assert (await ask(client, tokens(10, seed=4))).prompt_tokens == 10
    assert sum(call.cancelled() for call in cancelled) > 20
    # the one that was being computed and the one that stays, with room for a busy machine; were
    # the others still computed it would be some thirty
    assert now() - began < 10 * alone + 1


async def test_a_full_queue_is_told_at_once_and_the_others_are_answered(client, engine):
    calls = [ask(client, tokens(500, seed=200 + n), f"queue.{n:03}") for n in range(64)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = [str(outcome) for outcome in outcomes if isinstance(outcome, EngineUnavailable)]
    answered = [outcome for outcome in outcomes if isinstance(outcome, LabelLogprobs)]
    assert len(refused) + len(answered) == 64
    assert set(refused) == ({"The engine's queue is full."} if engine.front == "python" else set())
    assert len(answered) >= MAX_QUEUED
    assert (await ask(client, tokens(5, seed=5))).prompt_tokens == 5
