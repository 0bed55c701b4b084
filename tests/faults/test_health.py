"""Every fault of the route that shows the engine's health: ours says so in time and serves on."""

import asyncio

import pytest

from tests.faults.conftest import HEALTH_SECONDS, Serve
from tests.faults.outcomes import LATE_SECONDS
from tests.faults.product import Product
from tests.support.fake_engine import Fault

STATE = "/server_info"
"""What is asked instead of SGLang's own `/health`, whose request may kill it beside ours."""
BROKEN = [
    Fault.NOT_READY,
    Fault.CRASHED,
    Fault.REDIRECT,
    Fault.NO_ROUTE,
    Fault.ENDLESS,
    Fault.HANG,
    Fault.STALL,
    Fault.TRICKLE,
    Fault.RESET,
    Fault.HALF,
    Fault.NOT_HTTP,
]


async def assert_health(product: Product, status: int, word: str) -> None:
    """`/health` answers so, in time."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    reply = await product.health()
    assert loop.time() - begun < HEALTH_SECONDS + LATE_SECONDS
    assert (reply.status, reply.json["status"]) == (status, word)


@pytest.mark.parametrize("fault", BROKEN, ids=lambda fault: fault.value)
async def test_fault_of_the_state(served: Serve, fault: Fault) -> None:
    async with served() as product:
        await product.until_ready()
        product.engine.broken["/server_info"] = fault
        await assert_health(product, 503, "unavailable")
        assert (await product.evaluate()).status == 200, "an engine that answers is of use"
        product.engine.broken.clear()
        await assert_health(product, 200, "ok")
        await product.settle()
        assert product.engine.killed_by == []


async def test_state_that_comes_late_is_a_state_and_is_asked_once_for_all(served: Serve) -> None:
    async with served() as product:
        await product.until_ready()
        asked = product.engine.requests.count("GET /server_info")
        product.engine.health_delay = HEALTH_SECONDS / 2
        replies = await asyncio.gather(*(product.health() for _ in range(20)))
        assert {reply.status for reply in replies} == {200}
        assert product.engine.requests.count("GET /server_info") == asked + 1
        await product.settle()
