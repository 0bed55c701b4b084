"""The official Python SDK reads the sentence of every error, and tries again what may pass."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from typesafe_sdk import (
    Box,
    Choice,
    Image,
    Noul,
    RetryPolicy,
    TypeSafeAPIError,
    TypeSafeAuthenticationError,
    TypeSafeBadRequestError,
    TypeSafeInternalServerError,
    TypeSafeNotFoundError,
    TypeSafeUnprocessableEntityError,
)

from tests.conformance.conftest import Connect
from tests.conformance.official import KINDS, Kind, Official, official, trickle
from tests.support.fake_engine import FakeEngine, Fault
from tests.support.served import Served

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="module"),
]

KEY = "a-key-of-ours"
STATE = "The parcel arrived broken."
NOUL = {"q": Noul(instructions="Is the parcel broken?")}


@dataclass(frozen=True)
class Bad:
    """A call that is refused.

    Attributes:
        error: the SDK's exception.
        status: the HTTP status.
        said: what the sentence must name.
        under: the base address is this much deeper than the server's root. A query lets the
            SDK, which knows only its own two routes, post to another one.
        key: the API key.
        call: what is asked.
        compression: of the body; `None` leaves it to the SDK.
    """

    error: type[TypeSafeAPIError]
    status: int
    said: str
    under: str = ""
    key: str = KEY
    call: tuple[Any, Any] = (STATE, NOUL)
    options: tuple[tuple[str, Any], ...] = ()
    compression: Any = None


LONG = "parcel " * 400_000
BAD = {
    "unknown model": Bad(TypeSafeBadRequestError, 400, "gpt-9", options=(("model", "gpt-9"),)),
    "wrong key": Bad(TypeSafeAuthenticationError, 401, "key", key="another"),
    "wrong route": Bad(TypeSafeNotFoundError, 404, "/v2/v1/systemone", under="/v2"),
    "wrong method": Bad(TypeSafeAPIError, 405, "POST", under="/v1/limits?"),
    "long body": Bad(TypeSafeAPIError, 413, "2097152", call=(LONG, NOUL), compression=False),
    "long body, packed": Bad(TypeSafeAPIError, 413, "2097152", call=(LONG, NOUL)),
    "image": Bad(TypeSafeAPIError, 415, "multipart", call=(Image(b"\x89PNG\r\n\x1a\n"), NOUL)),
    "unknown coding": Bad(
        TypeSafeAPIError, 415, "zstd", options=(("extra_headers", {"Content-Encoding": "br"}),)
    ),
    "one option": Bad(
        TypeSafeUnprocessableEntityError,
        422,
        "team",
        call=(STATE, {"team": Choice(criteria={"a": ""})}),
    ),
    "box": Bad(
        TypeSafeUnprocessableEntityError,
        422,
        "where",
        call=(STATE, {"where": Box(instructions="Dog")}),
    ),
    "long state": Bad(TypeSafeUnprocessableEntityError, 422, "8192", call=("Ab. " * 9_000, NOUL)),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def product(connect: Connect) -> AsyncIterator[tuple[Served, FakeEngine]]:
    """A product with a key that answers one evaluation at a time and waits two seconds for it."""
    settings = {
        "OPENJEV_API_KEY": KEY,
        "OPENJEV_REQUEST_TIMEOUT": "2",
        "OPENJEV_MAX_CONCURRENT_REQUESTS": "1",
    }
    async with connect(**settings) as pair:
        yield pair


async def error_of(sdk: Official, *call: Any, **options: Any) -> TypeSafeAPIError:
    """Make a call that fails, and check what holds for every failure."""
    with pytest.raises(TypeSafeAPIError) as caught:
        await sdk.ask(*call, **options)
    error = caught.value
    message = error.body["error"]["message"]
    assert message.endswith(".")
    assert f" {error.status} {message} (request_id=" in str(error)
    assert re.fullmatch("req_[0-9a-f]{32}", error.request_id or "")
    assert len(sdk.sent) == 1
    return error


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("kind", KINDS)
async def test_refused_call_raises_with_the_sentence(
    product: tuple[Served, FakeEngine], kind: Kind, bad: Bad
) -> None:
    served, engine = product
    before = len(engine.calls)
    url = served.url + bad.under
    async with official(kind, url, key=bad.key, compression=bad.compression) as sdk:
        error = await error_of(sdk, *bad.call, **dict(bad.options))
    assert (type(error), error.status) == (bad.error, bad.status)
    assert bad.said in str(error)
    assert len(engine.calls) == before, "the engine was asked"


@pytest.mark.parametrize("kind", KINDS)
async def test_answer_type_that_a_proxy_asks_for_raises_with_the_sentence(
    product: tuple[Served, FakeEngine], kind: Kind
) -> None:
    def ask_for_a_table(request: httpx2.Request) -> None:
        request.headers["Accept"] = "text/csv"  # the SDK itself always asks for JSON

    async with official(kind, product[0].url, key=KEY, alter=ask_for_a_table) as sdk:
        error = await error_of(sdk, STATE, NOUL)
    assert (type(error), error.status) == (TypeSafeAPIError, 406)
    assert "application/json" in str(error)


async def test_slow_body_raises_with_the_sentence(hurried_product: Served) -> None:
    for kind in KINDS:
        async with official(kind, hurried_product.url, alter=trickle) as sdk:
            error = await error_of(sdk, STATE, NOUL)
        assert (type(error), error.status) == (TypeSafeAPIError, 408)
        assert "1 seconds" in str(error)


@pytest.mark.parametrize(
    ("fault", "status", "name"),
    [
        (Fault.NAN, 502, "backend_error"),
        (Fault.REFUSED, 502, "backend_error"),
        (Fault.QUEUE_FULL, 503, "backend_unavailable"),
        (Fault.RESET, 503, "backend_unavailable"),
        (Fault.HANG, 504, "timeout_error"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_failing_engine_raises_with_the_sentence(
    product: tuple[Served, FakeEngine], kind: Kind, fault: Fault, status: int, name: str
) -> None:
    served, engine = product
    engine.play(fault)
    async with official(kind, served.url, key=KEY) as sdk:
        error = await error_of(sdk, STATE, NOUL)
    engine.play(Fault.NONE)
    assert (type(error), error.status) == (TypeSafeInternalServerError, status)
    assert error.body["detail"]["error_type"] == name
    assert "secret" not in str(error)
    assert ("Retry-After" in error.headers) == (status == 503)


@pytest.mark.parametrize("kind", KINDS)
async def test_full_server_raises_with_the_sentence(
    product: tuple[Served, FakeEngine], kind: Kind
) -> None:
    served, engine = product
    engine.play(Fault.HANG, times=1)
    async with official(kind, served.url, key=KEY) as first:
        running = asyncio.create_task(first.ask(STATE, NOUL))
        await engine.wait_for(lambda engine: engine.running == 1)
        async with official(kind, served.url, key=KEY) as second:
            error = await error_of(second, STATE, NOUL)
        engine.release()
        await running
    assert (type(error), error.status) == (TypeSafeInternalServerError, 529)
    assert error.body["detail"]["error_type"] == "overloaded_error"
    assert error.headers["Retry-After"] == "1"


@pytest.mark.parametrize("kind", KINDS)
async def test_passing_failure_is_tried_again_when_the_server_says(
    product: tuple[Served, FakeEngine], kind: Kind
) -> None:
    served, engine = product
    engine.play(Fault.QUEUE_FULL, times=1)
    async with official(kind, served.url, key=KEY, retry=RetryPolicy(max_retries=1)) as sdk:
        begun = time.monotonic()
        result = await sdk.ask(STATE, NOUL)
        took = time.monotonic() - begun
    assert "q" in result.nouls
    assert len(sdk.sent) == 2
    assert took >= 1  # Retry-After; the SDK's own first delay is at most half a second
