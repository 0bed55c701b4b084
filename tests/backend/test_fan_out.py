"""Calls made together: all answered, or none left behind."""

import asyncio

import pytest

from backend.client import EngineClient
from backend.errors import EngineRejected, EngineTimeout, EngineUnavailable, UnusableLogprobs
from backend.protocol import Call
from backend.token_ids import TokenIds
from tests.support.fake_engine import Fault


def soon(seconds=5.0):
    return asyncio.get_running_loop().time() + seconds


def calls(count, name="e"):
    return [Call(TokenIds.of([1, 2, n + 3]), [7, 8 + n], f"{name}.{n:03}") for n in range(count)]


@pytest.fixture
async def client(fake_engine):
    client = EngineClient(fake_engine.url, max_in_flight=4)
    yield client
    await client.aclose()


def ask(client, asked, deadline=None):
    return client.label_logprobs(asked, deadline=deadline or soon(), routing_key="e")


async def test_answers_come_in_the_order_of_the_calls_however_the_engine_orders_them(
    client, fake_engine
):
    fake_engine.play(Fault.HANG, times=1)  # the first is answered last
    asked = calls(3)
    answering = asyncio.create_task(ask(client, asked))
    await fake_engine.wait_for(lambda engine: len(engine.calls) == 3 and engine.running == 1)
    fake_engine.release()
    answers = await answering
    for call, answer in zip(asked, answers, strict=True):
        expected = fake_engine.logprobs(list(call.input_ids))
        assert answer.logprobs == tuple(expected[label] for label in call.label_ids)


async def test_more_calls_than_slots_are_all_made(client, fake_engine):
    fake_engine.delay = 0.01
    groups = await asyncio.gather(*(ask(client, calls(7, name)) for name in "abc"))
    assert [len(group) for group in groups] == [7, 7, 7]
    assert fake_engine.peak == 4


async def test_no_calls_have_no_answers(client, fake_engine):
    assert await ask(client, []) == []
    assert fake_engine.calls == []


async def test_the_first_failure_ends_all_and_frees_their_slots(client, fake_engine):
    fake_engine.play(Fault.HANG, when=lambda call: call.rid != "e.002")
    fake_engine.play(Fault.MISSING, when=lambda call: call.rid == "e.002", among=4)
    with pytest.raises(UnusableLogprobs):
        await ask(client, calls(6))
    await fake_engine.wait_for(lambda engine: not engine.running)
    await fake_engine.wait_for(lambda engine: len(engine.aborts) == 3)
    assert {*fake_engine.aborts} == {"e.000", "e.001", "e.003"}  # e.002 is over by itself
    assert len(fake_engine.calls) == 4
    fake_engine.play(Fault.NONE)
    assert len(await ask(client, calls(6, "f"))) == 6


async def test_a_failure_before_others_have_a_slot_keeps_them_from_being_made(fake_engine):
    client = EngineClient(fake_engine.url, max_in_flight=1)
    fake_engine.play(Fault.REFUSED, times=1)
    with pytest.raises(EngineRejected):
        await ask(client, calls(3))
    assert len(await ask(client, calls(3, "f"))) == 3
    assert [call.rid for call in fake_engine.calls] == ["e.000", "f.000", "f.001", "f.002"]
    await client.aclose()


async def test_cancelling_ends_all(client, fake_engine):
    fake_engine.play(Fault.HANG)
    answering = asyncio.create_task(ask(client, calls(6)))
    await fake_engine.wait_for(lambda engine: engine.running == 4)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    await fake_engine.wait_for(lambda engine: not engine.running)
    await fake_engine.wait_for(lambda engine: len(engine.aborts) == 4)
    assert len(fake_engine.calls) == 4
    fake_engine.play(Fault.NONE)
    assert len(await ask(client, calls(6, "f"))) == 6


async def test_the_deadline_ends_all_under_way_and_waiting(client, fake_engine):
    fake_engine.play(Fault.HANG)
    with pytest.raises(EngineTimeout):
        await ask(client, calls(6), soon(0.1))
    await fake_engine.wait_for(lambda engine: len(engine.aborts) == 4 and not engine.running)
    fake_engine.play(Fault.NONE)
    assert len(await ask(client, calls(6, "f"))) == 6


async def test_nothing_is_sent_where_one_call_may_not_be(client, fake_engine):
    asked = [*calls(2), Call(TokenIds.of([]), [7], "e.002")]
    with pytest.raises(EngineRejected, match="no tokens"):
        await ask(client, asked)
    assert fake_engine.calls == []


async def test_what_goes_wrong_in_reading_an_answer_reaches_the_caller(client, monkeypatch):
    def fails(body, call):
        raise ZeroDivisionError

    monkeypatch.setattr("backend.fan_out.parse_label_logprobs", fails)
    with pytest.raises(ZeroDivisionError):
        await ask(client, calls(2))


async def test_what_goes_wrong_in_beginning_a_call_concerns_nobody_else(client, fake_engine):
    """Whose turn it is decides whoever gives a slot back."""
    fake_engine.play(Fault.HANG, times=4)
    first = asyncio.create_task(ask(client, calls(4)))
    await fake_engine.wait_for(lambda engine: engine.running == 4)
    second = asyncio.create_task(
        client.label_logprobs(calls(2, "f"), deadline=soon(), routing_key="two\r\nlines")
    )
    await asyncio.sleep(0)
    fake_engine.release()
    assert len(await first) == 4
    with pytest.raises(ValueError, match="line break"):
        await second
    assert len(await ask(client, calls(6, "g"))) == 6


async def test_calls_that_wait_while_the_client_closes_are_not_made(fake_engine):
    client = EngineClient(fake_engine.url, max_in_flight=4)
    fake_engine.play(Fault.HANG)
    first = asyncio.create_task(ask(client, calls(4)))
    await fake_engine.wait_for(lambda engine: engine.running == 4)
    assert await client.is_healthy(deadline=soon())  # over a connection that is kept
    second = asyncio.create_task(ask(client, calls(2, "f")))
    await asyncio.sleep(0)
    await client.aclose()
    for answering in (first, second):
        with pytest.raises(EngineUnavailable, match="has been closed"):
            await answering
    await fake_engine.wait_for(lambda engine: not engine.running)
    assert len(fake_engine.calls) == 4
