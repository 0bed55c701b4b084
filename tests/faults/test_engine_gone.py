"""An engine that hangs, dies and comes back, and clients that do not wait for it."""

import asyncio

import pytest

from tests.faults.conftest import HEALTH_SECONDS, Serve
from tests.faults.outcomes import (
    BRANCHES,
    GONE,
    LATE_SECONDS,
    NONSENSE,
    REQUEST_SECONDS,
    SILENT,
    assert_outcome,
)
from tests.faults.product import MODEL, VOCABULARY_SIZE, Product, usual_engine
from tests.support.fake_engine import Call, FakeEngine, Fault
from tests.support.fake_engine.shapes import Front

EVALUATIONS = 8
ABORT_SECONDS = 2.0
BROKEN_ABORT = [Fault.CRASHED, Fault.NO_ROUTE, Fault.UNAUTHORISED, Fault.NOT_READY, Fault.ENDLESS]
BROKEN_ABORT += [Fault.HANG, Fault.STALL, Fault.TRICKLE, Fault.RESET, Fault.HALF, Fault.NOT_HTTP]


def is_branch(call: Call) -> bool:
    return not call.rid.endswith(".0000")


def is_last(call: Call) -> bool:
    return call.rid.endswith(f".{BRANCHES:04d}")


def running(calls: int):
    return lambda engine: engine.running == calls


async def assert_served(product: Product) -> None:
    """All is as if nothing had been."""
    product.engine.play(Fault.NONE)
    await product.until_ready()
    assert (await product.evaluate()).status == 200
    await product.settle()


async def test_who_waits_for_a_hung_engine_is_told_when_the_server_waits_no_longer(
    served: Serve,
) -> None:
    async with served(REQUEST_TIMEOUT="60", DRAIN_TIMEOUT="60") as product:
        await product.until_ready()
        product.engine.hang()
        asked = [asyncio.create_task(product.evaluate()) for _ in range(EVALUATIONS)]
        await product.engine.wait_for(running(EVALUATIONS))
        await product.lifespan.shutdown(0.05)
        for reply in await asyncio.gather(*asked):
            assert_outcome(reply, GONE)


async def test_hang_then_die_then_another_in_its_place(served: Serve) -> None:
    """What SGLang 0.5.19 does when a request kills it: for a minute nothing, then gone."""
    loop = asyncio.get_running_loop()
    async with served(REQUEST_TIMEOUT="60") as product:
        engine = product.engine
        await product.until_ready()
        engine.hang()
        asked = [asyncio.create_task(product.evaluate()) for _ in range(EVALUATIONS)]
        await engine.wait_for(running(EVALUATIONS))
        health = await product.health()
        assert (health.status, health.json["status"]) == (503, "unavailable")
        assert not any(task.done() for task in asked)
        died = loop.time()
        await engine.die()
        for reply in await asyncio.gather(*asked):
            assert_outcome(reply, GONE)
        assert_outcome(await product.evaluate(), GONE)
        assert (await product.health()).status == 503
        assert loop.time() - died < LATE_SECONDS
        await product.settle()
        assert product.ports() == set()
        await engine.revive()
        await assert_served(product)


@pytest.mark.parametrize("asked_first", ["health", "evaluations"])
async def test_another_model_in_its_place_is_not_used(served: Serve, asked_first: str) -> None:
    async with served() as product:
        engine = product.engine
        await product.until_ready()
        well = await product.evaluate()
        await engine.die()
        assert_outcome(await product.evaluate(), GONE)
        engine.model, engine.vocabulary_size = "other/model", 100
        before = len(engine.calls)
        await engine.revive()
        if asked_first == "health":
            assert (await product.health()).json["status"] == "unavailable"
        for reply in await asyncio.gather(*(product.evaluate() for _ in range(EVALUATIONS))):
            assert_outcome(reply, GONE)
        assert (await product.health()).json["status"] == "unavailable"
        prompts = [call for call in engine.calls[before:] if len(call.input_ids) > 1]
        assert prompts == [], "it was shown a prompt"
        assert engine.killed_by == []
        engine.model, engine.vocabulary_size = MODEL, VOCABULARY_SIZE
        await product.until_ready()
        assert (await product.evaluate()).json == well.json


async def test_death_between_warm_up_and_answers(served: Serve) -> None:
    async with served(REQUEST_TIMEOUT="60") as product:
        await product.until_ready()
        product.engine.play(Fault.HANG, when=is_branch)
        asked = [asyncio.create_task(product.evaluate()) for _ in range(EVALUATIONS)]
        await product.engine.wait_for(running(EVALUATIONS * BRANCHES))
        await product.engine.die()
        for reply in await asyncio.gather(*asked):
            assert_outcome(reply, GONE)
        await product.settle()
        assert product.ports() == set()
        await product.engine.revive()
        await assert_served(product)


async def test_engine_that_hangs_on_every_route_is_left_at_the_deadline(served: Serve) -> None:
    """Its abort route hangs as well; nobody waits for that, and it is given up by itself."""
    loop = asyncio.get_running_loop()
    async with served(REQUEST_TIMEOUT=str(REQUEST_SECONDS)) as product:
        await product.until_ready()
        product.engine.hang()
        begun = loop.time()
        replies = await asyncio.gather(*(product.evaluate() for _ in range(EVALUATIONS)))
        assert loop.time() - begun < REQUEST_SECONDS + LATE_SECONDS
        for reply in replies:
            assert_outcome(reply, SILENT)
        assert product.engine.requests.count("POST /abort_request") > 0
        await product.settle()
        assert loop.time() - begun < REQUEST_SECONDS + ABORT_SECONDS + LATE_SECONDS
        await product.engine.die()
        await product.engine.revive()
        await assert_served(product)


@pytest.mark.parametrize("fault", BROKEN_ABORT, ids=lambda fault: fault.value)
async def test_fault_of_the_abort_route_is_nobodys_matter(served: Serve, fault: Fault) -> None:
    loop = asyncio.get_running_loop()
    async with served(REQUEST_TIMEOUT="60") as product:
        await product.until_ready()
        product.engine.broken["/abort_request"] = fault
        product.engine.play(Fault.HANG, when=is_branch)
        product.engine.play(Fault.NAN, when=is_last, among=BRANCHES)
        begun = loop.time()
        assert_outcome(await product.evaluate(), NONSENSE)
        assert loop.time() - begun < LATE_SECONDS
        await product.settle()
        siblings = product.engine.calls[-BRANCHES:]
        siblings.remove(next(filter(is_last, siblings)))
        assert {call.rid for call in siblings} <= {*product.engine.disconnects}
        product.engine.broken.clear()
        await assert_served(product)


async def test_restart_of_the_engine_between_two_evaluations_costs_nobody(served: Serve) -> None:
    """Kept connections turn out to be dead; that is found out once and repaired."""
    async with served() as product:
        await product.until_ready()
        assert (await product.evaluate()).status == 200
        assert product.ports()
        await product.engine.die()
        await product.engine.revive()
        assert (await product.evaluate()).status == 200
        await product.settle()


@pytest.mark.parametrize("front", ["python", "rust"])
async def test_reset_of_a_kept_connection_costs_nobody(served: Serve, front: Front) -> None:
    async with served(usual_engine(front)) as product:
        await product.until_ready()
        well = await product.evaluate()
        before = len(product.engine.calls)
        product.engine.play(Fault.RESET, times=1)  # on the warm-up, which reuses a connection
        reply = await product.evaluate()
        assert (reply.status, reply.json) == (200, well.json)
        assert len(product.engine.calls) == before + 1 + 1 + BRANCHES
        await product.settle()


@pytest.mark.parametrize("front", ["python", "rust"])
@pytest.mark.parametrize("calls", [1, BRANCHES], ids=["warm-up", "branches"])
async def test_client_that_leaves_ends_its_calls(served: Serve, calls: int, front: Front) -> None:
    async with served(usual_engine(front)) as product:
        engine: FakeEngine = product.engine
        await product.until_ready()
        engine.play(Fault.HANG, when=None if calls == 1 else is_branch)
        leaving = asyncio.Event()
        asked = asyncio.create_task(product.abandon(leaving))
        await engine.wait_for(running(calls))
        under_way = engine.calls[-calls:]
        leaving.set()
        async with asyncio.timeout(LATE_SECONDS):
            reply = await asked
        assert reply.events == [], "nobody is there to read it"
        await product.settle()
        ended = {*(engine.aborts if front == "python" else engine.disconnects)}
        assert {call.rid for call in under_way} <= ended
        assert not {call.peer_port for call in under_way} & product.ports()
        await assert_served(product)


async def test_no_input_reaches_the_window_that_kills_the_engine(served: Serve) -> None:
    """Evaluations grow until they are refused; the last ones before that are answered."""
    longest = 600
    engine = usual_engine(context_length=longest + 6)
    async with served(engine, MAX_INPUT_TOKENS=str(longest)) as product:
        await product.until_ready()
        statuses = {}
        low, high = 1, longest
        while low <= high:
            middle = (low + high) // 2
            statuses[middle] = (await product.evaluate("q" * middle)).status
            low, high = (middle + 1, high) if statuses[middle] == 200 else (low, middle - 1)
        assert {*statuses.values()} == {200, 422}
        assert max(len(call.input_ids) for call in engine.calls) == longest - 1
        assert engine.killed_by == []
        await product.settle()


async def test_health_within_its_time_while_everything_hangs(served: Serve) -> None:
    loop = asyncio.get_running_loop()
    async with served() as product:
        await product.until_ready()
        product.engine.hang()
        begun = loop.time()
        replies = await asyncio.gather(*(product.health() for _ in range(50)))
        assert {reply.json["status"] for reply in replies} == {"unavailable"}
        assert loop.time() - begun < HEALTH_SECONDS + LATE_SECONDS
        assert product.engine.requests.count("GET /server_info") < 50
        await product.engine.die()
