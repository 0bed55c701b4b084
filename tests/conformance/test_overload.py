"""More evaluations than there are places, and clients that leave before their answer."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import pytest_asyncio

from tests.conformance.conftest import Connect
from tests.support.fake_engine import Call, FakeEngine, Fault
from tests.support.served import Served

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="module"),
]

PLACES = 16
TRIES = 5
BODY = {
    "model": "jev-latest",
    "state": "The parcel arrived broken.",
    "questions": {name: {"type": "noul", "instructions": f"Is it {name}?"} for name in "abc"},
}
BRANCHES = len(BODY["questions"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def product(connect: Connect) -> AsyncIterator[tuple[Served, FakeEngine]]:
    """A product with the default limits on a scripted engine."""
    async with connect() as pair:
        yield pair


@pytest_asyncio.fixture(loop_scope="module")
async def engine(product: tuple[Served, FakeEngine]) -> AsyncIterator[FakeEngine]:
    """The engine, well-behaved and idle before and after the test."""
    engine = product[1]
    engine.calls.clear()
    yield engine
    engine.play(Fault.NONE)
    engine.release()
    await engine.wait_for(is_running(0))


def is_running(calls: int):
    return lambda engine: engine.running == calls


def is_branch(call: Call) -> bool:
    """Whether a call asks a question; the first of each evaluation, the warm-up, asks none."""
    return not call.rid.endswith(".0000")


@asynccontextmanager
async def evaluation(product: tuple[Served, FakeEngine]) -> AsyncIterator[asyncio.Task]:
    """An evaluation asked over a connection of its own, which is closed when the block ends."""
    async with httpx.AsyncClient(base_url=product[0].url, timeout=60) as client:
        yield asyncio.create_task(client.post("/v1/systemone", json=BODY))


async def ask(product: tuple[Served, FakeEngine]) -> httpx.Response:
    async with evaluation(product) as answer:
        return await answer


async def test_one_more_than_fits_is_refused_at_once_and_the_others_are_answered(
    product: tuple[Served, FakeEngine], engine: FakeEngine
) -> None:
    engine.play(Fault.HANG)
    waiting = [asyncio.create_task(ask(product)) for _ in range(PLACES)]
    await engine.wait_for(is_running(PLACES))  # every warm-up is held
    async with httpx.AsyncClient(base_url=product[0].url, timeout=60) as client:
        await client.get("/health/live")  # connected: what is measured is the refusal
        seconds = []
        for _ in range(TRIES):
            begun = time.perf_counter()
            refused = await client.post("/v1/systemone", json=BODY)
            seconds.append(time.perf_counter() - begun)
            assert refused.status_code == 529
            assert refused.headers["Retry-After"] == "1"
            assert refused.json()["detail"]["error_type"] == "overloaded_error"
        assert min(seconds) < 0.1, seconds
        health = await client.get("/health")
        assert health.json()["status"] == "ok", "a full server is a working server"
    assert engine.running == len(engine.calls) == PLACES, "a refused evaluation was begun"
    engine.play(Fault.NONE)
    engine.release()
    answers = await asyncio.gather(*waiting)
    assert [answer.status_code for answer in answers] == [200] * PLACES
    assert all(answer.json()["answers"].keys() == BODY["questions"].keys() for answer in answers)
    assert len(engine.calls) == PLACES * (BRANCHES + 1)
    assert (await ask(product)).status_code == 200


async def test_client_that_leaves_frees_its_place_and_its_branches(
    product: tuple[Served, FakeEngine], engine: FakeEngine
) -> None:
    engine.play(Fault.HANG, when=is_branch)
    waiting = [asyncio.create_task(ask(product)) for _ in range(PLACES - 1)]
    await engine.wait_for(is_running(BRANCHES * (PLACES - 1)))
    others = {call.rid for call in engine.calls}
    async with evaluation(product) as leaving:
        await engine.wait_for(is_running(BRANCHES * PLACES))
        assert (await ask(product)).status_code == 529
        leaving.cancel()
    left = {call.rid for call in engine.calls if is_branch(call)} - others
    assert len(left) == BRANCHES
    await engine.wait_for(lambda engine: left <= {*engine.aborts, *engine.disconnects})
    await engine.wait_for(is_running(BRANCHES * (PLACES - 1)))
    waiting.append(asyncio.create_task(ask(product)))
    await engine.wait_for(is_running(BRANCHES * PLACES))  # it got the place
    engine.play(Fault.NONE)
    engine.release()
    answers = await asyncio.gather(*waiting)
    assert [answer.status_code for answer in answers] == [200] * PLACES
    assert not others & {*engine.aborts, *engine.disconnects}, "somebody else's call was ended"


async def test_client_that_leaves_during_the_warm_up_asks_no_question(
    product: tuple[Served, FakeEngine], engine: FakeEngine
) -> None:
    engine.play(Fault.HANG)
    async with evaluation(product) as leaving:
        await engine.wait_for(is_running(1))
        leaving.cancel()
    (warm_up,) = engine.calls
    await engine.wait_for(lambda engine: warm_up.rid in {*engine.aborts, *engine.disconnects})
    await engine.wait_for(is_running(0))
    engine.play(Fault.NONE)
    assert (await ask(product)).status_code == 200
    assert len(engine.calls) == 1 + 1 + BRANCHES
