"""The request id, the last resort, and the protocols that are turned away."""

import logging
import re
from typing import Any

import pytest

from openjev_site.failures import Failures
from openjev_site.http_only import HttpOnly
from openjev_site.request_id import RequestId, request_id_of
from tests.openjev_site.exchange import Echo, exchange

REQUEST_ID = re.compile(r"req_[0-9a-f]{32}")


async def test_every_response_gets_both_headers_and_the_scope_the_id() -> None:
    echo = Echo()
    app = RequestId(echo)
    replies = [await exchange(app) for _ in range(3)]
    ids = [reply.headers["x-request-id"] for reply in replies]
    assert len(set(ids)) == 3
    for reply in replies:
        assert REQUEST_ID.fullmatch(reply.headers["x-request-id"])
        assert reply.headers["x-typesafe-request-id"] == reply.headers["x-request-id"]
    assert request_id_of(echo.scope) == ids[-1]  # type: ignore[arg-type]


async def test_an_id_from_the_caller_or_from_below_is_replaced() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"X-Request-Id", b"mine"), (b"x-other", b"kept")]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    reply = await exchange(RequestId(app), headers=[("X-Request-Id", "theirs\r\nx: y")])
    assert REQUEST_ID.fullmatch(reply.headers["x-request-id"])
    assert reply.headers["x-other"] == "kept"


async def test_an_escaped_exception_is_a_500_that_tells_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("the secret is 42")

    reply = await exchange(RequestId(Failures(app)))
    assert reply.status == 500
    assert reply.complete
    request_id = reply.headers["x-request-id"]
    assert reply.json["error"]["type"] == reply.json["detail"]["error_type"] == "internal_error"
    assert request_id in reply.json["error"]["message"]
    assert b"secret" not in reply.body
    assert b"RuntimeError" not in reply.body
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert request_id in record.getMessage()
    assert record.exc_info


async def test_an_exception_after_the_start_cannot_become_a_second_answer() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("too late")

    with pytest.raises(RuntimeError):
        await exchange(Failures(app))


async def test_a_head_request_gets_the_head_of_an_error_only() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError

    reply = await exchange(Failures(app), "HEAD")
    assert reply.status == 500
    assert reply.body == b""
    assert int(reply.headers["content-length"]) > 0


async def test_websockets_are_closed_and_http_passes() -> None:
    app = HttpOnly(Echo())
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(event: Any) -> None:
        sent.append(event)

    await app({"type": "websocket", "path": "/"}, receive, send)  # type: ignore
    assert [event["type"] for event in sent] == ["websocket.close"]
    assert (await exchange(app)).status == 200


@pytest.mark.parametrize("wrapper", [RequestId, Failures])
async def test_wrappers_of_http_leave_the_lifespan_alone(wrapper: Any) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    scope = {"type": "lifespan"}
    await wrapper(app)(scope, receive=None, send=None)
    assert seen == [(scope, None, None)]
    assert seen[0][0] is scope
