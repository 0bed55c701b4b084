"""Every fault while the product starts: it waits and says so, or says that waiting is in vain."""

from collections.abc import Callable
from typing import Any

import pytest

from evaluations.runtime import get_runtime
from tests.faults.conftest import Serve
from tests.faults.outcomes import GONE, OUTCOMES, assert_outcome
from tests.faults.product import VOCABULARY_SIZE, Product, usual_engine
from tests.support.fake_engine import FakeEngine, Fault

REFUSED = {Fault.REFUSED, Fault.TOO_LONG, Fault.UNAUTHORISED, Fault.NO_ROUTE}
"""Answers by which an engine says that it will not serve us, however long we wait."""
USELESS = {Fault.NAN, Fault.INFINITE, Fault.POSITIVE, Fault.NULL, Fault.TEXT, Fault.SHORT}
USELESS |= {Fault.OTHER_IDS, Fault.MISSING}
"""Whole answers without the numbers that were asked for, which the next one will lack, too."""
NUMBERS = USELESS | {Fault.WRONG_COUNT, Fault.OTHER_CALL}

Fix = Callable[[FakeEngine], None]


async def assert_not_ready(product: Product, word: str) -> None:
    """`/health` comes to say `word`, and nothing is evaluated."""
    async for said in product.healths():
        if said == word:
            break
        assert said == "starting", said
    assert_outcome(await product.evaluate(), GONE)


async def assert_becomes_ready(product: Product) -> None:
    await product.until_ready()
    assert (await product.evaluate()).status == 200
    await product.settle()
    assert product.engine.killed_by == []


@pytest.mark.parametrize("fault", OUTCOMES, ids=lambda fault: fault.value)
async def test_fault_of_the_first_calls(served: Serve, fault: Fault) -> None:
    engine = usual_engine()
    engine.play(fault)
    async with served(engine) as product:
        await product.until(lambda: len(engine.calls) >= 2)  # it has tried again
        in_vain = fault in {*REFUSED, *USELESS, Fault.ERROR_IN_200}
        await assert_not_ready(product, "unavailable" if in_vain else "starting")
        engine.play(Fault.NONE)
        engine.release()
        await assert_becomes_ready(product)


@pytest.mark.parametrize(
    "fault",
    [f for f in OUTCOMES if f not in {*USELESS, Fault.WRONG_COUNT}],
    ids=lambda fault: fault.value,
)
async def test_fault_of_the_model_list(served: Serve, fault: Fault) -> None:
    engine = usual_engine()
    engine.broken["/v1/models"] = fault
    async with served(engine) as product:
        await product.until(lambda: engine.requests.count("GET /v1/models") >= 2)
        await assert_not_ready(product, "unavailable" if fault in REFUSED else "starting")
        engine.broken.clear()
        engine.release()
        await assert_becomes_ready(product)


@pytest.mark.parametrize("path", ["/get_server_info", "/abort_request", "/tokenize"])
@pytest.mark.parametrize("fault", [Fault.HANG, Fault.RESET, Fault.HALF, Fault.NOT_HTTP])
async def test_fault_of_another_route_is_waited_out(served: Serve, path: str, fault: Fault) -> None:
    engine = usual_engine()
    engine.broken[path] = fault
    async with served(engine) as product:
        await product.until(lambda: engine.requests.count("GET /v1/models") >= 2)
        await assert_not_ready(product, "starting")
        engine.broken.clear()
        engine.release()
        await assert_becomes_ready(product)


async def test_engine_that_is_not_there_yet(served: Serve) -> None:
    engine = usual_engine()
    async with served(engine) as product:
        await engine.die()
        await assert_not_ready(product, "starting")
        await engine.revive()
        await assert_becomes_ready(product)


MISFITS: dict[str, tuple[dict[str, Any], str, Fix]] = {
    "another model": (
        {"model": "other/model"},
        "serves 'other/model'",
        lambda engine: setattr(engine, "model", "tiny/random"),
    ),
    "short context": (
        {"context_length": 4096},
        "fewer than 4090 tokens",
        lambda engine: setattr(engine, "context_length", 16_384),
    ),
    "small vocabulary": (
        {"vocabulary_size": VOCABULARY_SIZE - 1},
        f"fewer than the {VOCABULARY_SIZE} tokens",
        lambda engine: setattr(engine, "vocabulary_size", VOCABULARY_SIZE),
    ),
    "another tokenizer": (
        {"tokenize": lambda text: [1, 2, 3]},
        "into other tokens",
        lambda engine: setattr(engine, "tokenize", None),
    ),
    "no prefix cache": (
        {"info": {"disable_radix_cache": True}},
        "--disable-radix-cache",
        lambda engine: engine.info.clear(),
    ),
    "a key": (
        {"api_key": "another"},
        "OPENJEV_BACKEND_API_KEY",
        lambda engine: setattr(engine, "api_key", None),
    ),
}


@pytest.mark.parametrize(("described", "said", "fix"), MISFITS.values(), ids=MISFITS.keys())
async def test_engine_that_does_not_fit_is_refused_until_another_takes_its_place(
    served: Serve, described: dict[str, Any], said: str, fix: Fix
) -> None:
    async with served(usual_engine(**described)) as product:
        await assert_not_ready(product, "unavailable")
        reason = await get_runtime().refused()
        assert said in reason
        assert said not in (await product.evaluate()).body.decode()
        fix(product.engine)
        await assert_becomes_ready(product)
