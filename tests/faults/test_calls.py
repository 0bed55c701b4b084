"""Every fault of `/generate`, in the warm-up, and in one branch on both fronts of SGLang."""

import asyncio
from collections.abc import Callable

import pytest

from tests.faults.conftest import Serve
from tests.faults.outcomes import (
    BRANCHES,
    LATE_SECONDS,
    OUTCOMES,
    REQUEST_SECONDS,
    assert_outcome,
)
from tests.faults.product import Product, usual_engine
from tests.openjev_site.exchange import Reply
from tests.support.fake_engine import Call, Fault
from tests.support.fake_engine.shapes import Front

WARM_UP = ".0000"
LAST = f".{BRANCHES:04d}"
CUT_SHORT = {Fault.HANG, Fault.STALL, Fault.TRICKLE, Fault.ENDLESS, Fault.HALF, Fault.RESET}
"""After these the connection is of no more use; after the others it may be kept."""

every_fault = pytest.mark.parametrize("fault", OUTCOMES, ids=lambda fault: fault.value)


def ends_in(number: str) -> Callable[[Call], bool]:
    return lambda call: call.rid.endswith(number)


def settings_for(fault: Fault) -> dict[str, str]:
    return {"REQUEST_TIMEOUT": str(REQUEST_SECONDS if OUTCOMES[fault].at_deadline else 60)}


async def fail(product: Product, fault: Fault) -> list[Call]:
    """Evaluate while the fault is played; the error comes in time. Returns the calls made."""
    loop = asyncio.get_running_loop()
    before = len(product.engine.calls)
    begun = loop.time()
    reply = await product.evaluate()
    took = loop.time() - begun
    assert_outcome(reply, OUTCOMES[fault])
    earliest = REQUEST_SECONDS if OUTCOMES[fault].at_deadline else 0
    assert earliest <= took < earliest + LATE_SECONDS
    return product.engine.calls[before:]


async def assert_clean(product: Product, ended: list[Call], answered_before: Reply) -> None:
    """Nothing is under way, no connection of `ended` is open, and the next one is answered."""
    await product.settle()
    assert not {call.peer_port for call in ended} & product.ports()
    product.engine.play(Fault.NONE)
    again = await product.evaluate()
    assert (again.status, again.json) == (200, answered_before.json)
    await product.settle()
    assert product.engine.killed_by == []


def assert_cancelled(product: Product, calls: list[Call]) -> None:
    """Each of `calls` was ended as well as the front allows."""
    rids = {call.rid for call in calls}
    if product.engine.front == "python":
        assert rids <= {*product.engine.aborts}
    else:
        assert rids <= {*product.engine.disconnects}


def assert_asked_once(fault: Fault, calls: list[Call]) -> None:
    """Only the reset of a kept connection, which may have been closed while idle, costs a second.

    (In a branch it may be a new one.)
    """
    assert len(calls) == 1 or (fault is Fault.RESET and len(calls) == 2)


def test_the_table_is_complete() -> None:
    assert {*OUTCOMES, Fault.NONE} == {*Fault}


@every_fault
async def test_fault_in_the_warm_up(served: Serve, fault: Fault) -> None:
    async with served(**settings_for(fault)) as product:
        await product.until_ready()
        well = await product.evaluate()
        product.engine.play(fault, when=ends_in(WARM_UP))
        calls = await fail(product, fault)
        assert all(call.rid.endswith(WARM_UP) for call in calls), "a branch was asked"
        assert_asked_once(fault, calls)
        await assert_clean(product, calls if fault in CUT_SHORT else [], well)
        if OUTCOMES[fault].at_deadline:
            assert_cancelled(product, calls)


@pytest.mark.parametrize("front", ["python", "rust"])
@every_fault
async def test_fault_in_one_branch_ends_its_siblings(
    served: Serve, fault: Fault, front: Front
) -> None:
    async with served(usual_engine(front), **settings_for(fault)) as product:
        await product.until_ready()
        well = await product.evaluate()
        product.engine.play(Fault.HANG)
        product.engine.play(Fault.NONE, when=ends_in(WARM_UP))
        product.engine.play(fault, when=ends_in(LAST), among=BRANCHES)
        _, *branches = await fail(product, fault)
        failed = [call for call in branches if call.rid.endswith(LAST)]
        siblings = [call for call in branches if call not in failed]
        assert_asked_once(fault, failed)
        assert len(siblings) == BRANCHES - 1
        await assert_clean(product, siblings + (failed if fault in CUT_SHORT else []), well)
        assert_cancelled(product, siblings + (failed if OUTCOMES[fault].at_deadline else []))
