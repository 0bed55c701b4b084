"""The catalogue: everything an engine has been seen to do instead of answering, and a few worse.

Knows HTTP answers and connections; when a fault is played, and on which call, is the engine's
business.
"""

import asyncio
import copy
import enum
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web


class Fault(enum.Enum):
    """What a route does instead of answering properly."""

    NONE = "none"
    # in the numbers
    NAN = "nan"  # one label's log-probability is NaN
    INFINITE = "infinite"
    POSITIVE = "positive"
    NULL = "null"  # SGLang's value where it computed nothing
    TEXT = "text"  # a number in quotes
    SHORT = "short"  # the last label is missing
    OTHER_IDS = "other_ids"  # as many as asked, for other tokens
    MISSING = "missing"  # no output_token_ids_logprobs at all
    WRONG_COUNT = "wrong_count"  # prompt_tokens says the input was truncated
    OTHER_CALL = "other_call"  # the answer to another call
    # in the answer
    ABORTED = "aborted"  # 200 with finish_reason abort
    ERROR_IN_200 = "error_in_200"  # the Rust front's way with an item of a batch
    NOT_JSON = "not_json"
    LIST = "list"  # the answer to a batch
    ENDLESS = "endless"  # more bytes than an answer can have
    REDIRECT = "redirect"
    REFUSED = "refused"  # 400 whose message holds a server path and the body
    TOO_LONG = "too_long"
    UNAUTHORISED = "unauthorised"
    NO_ROUTE = "no_route"
    CLIENT_GONE = "client_gone"  # 499, how the Rust front ends an aborted call
    QUEUE_FULL = "queue_full"  # 503
    WAITED_TOO_LONG = "waited_too_long"  # 503 as well
    NOT_READY = "not_ready"  # 503 without a word: starting, or shutting down
    UPSTREAM = "upstream"  # 500 of a router whose engine is gone
    TRUNCATED = "truncated"  # 500, the Rust front's other way with an aborted call
    CRASHED = "crashed"  # 500 as bare text, then the connection is reset
    # on the wire
    HANG = "hang"  # nothing until aborted, released or disconnected
    STALL = "stall"  # half an answer, then nothing
    TRICKLE = "trickle"  # a byte now and then, for ever
    RESET = "reset"  # closes without a byte
    HALF = "half"  # half an answer, then closes
    NOT_HTTP = "not_http"


@dataclass(frozen=True, slots=True)
class Call:
    """One `/generate` that arrived."""

    rid: str
    input_ids: tuple[int, ...]
    label_ids: tuple[int, ...]
    body: dict[str, Any]
    headers: dict[str, str]
    peer_port: int


Play = Callable[[web.Request, bytes, Callable[[], Awaitable[None]]], Awaitable[web.StreamResponse]]
"""Takes the request, the proper answer and a pause that ends when calls are released."""

TRICKLE_SECONDS = 0.05


def canned(fault: Fault) -> web.Response | None:
    """The answer of a fault that does not depend on what was asked."""
    if fault not in _CANNED:
        return None
    status, payload = _CANNED[fault]
    if isinstance(payload, str):
        headers = {"Location": "/elsewhere"} if status == 302 else None
        return web.Response(status=status, text=payload, headers=headers)
    return web.json_response(payload, status=status)


def spoilt(answer: dict[str, Any], fault: Fault) -> dict[str, Any]:
    """A proper answer to a call, with what the fault does to its numbers."""
    answer = copy.deepcopy(answer)
    meta = answer["meta_info"]
    entries = meta["output_token_ids_logprobs"][0]
    if entries and fault in _BAD_LOGPROBS:
        entries[-1][0] = _BAD_LOGPROBS[fault]
    elif fault is Fault.SHORT:
        entries.pop()
    elif fault is Fault.OTHER_IDS:
        for entry in entries:
            entry[1] += 1
    elif fault is Fault.MISSING:
        del meta["output_token_ids_logprobs"]
    elif fault is Fault.WRONG_COUNT:
        meta["prompt_tokens"] -= 1
    elif fault is Fault.OTHER_CALL:
        meta["id"] = "another.0000"
    return answer


async def _reset(
    request: web.Request, whole: bytes, pause: Callable[[], Awaitable[None]]
) -> web.StreamResponse:
    _transport(request).abort()
    return web.Response()


async def _half(
    request: web.Request, whole: bytes, pause: Callable[[], Awaitable[None]]
) -> web.StreamResponse:
    response = await _begun(request, len(whole))
    await response.write(whole[: len(whole) // 2])
    _transport(request).close()
    return response


async def _stall(
    request: web.Request, whole: bytes, pause: Callable[[], Awaitable[None]]
) -> web.StreamResponse:
    response = await _begun(request, len(whole))
    await response.write(whole[: len(whole) // 2])
    await pause()
    await response.write(whole[len(whole) // 2 :])
    return response


async def _trickle(
    request: web.Request, whole: bytes, pause: Callable[[], Awaitable[None]]
) -> web.StreamResponse:
    response = await _begun(request, 2**20)
    released = asyncio.ensure_future(pause())
    try:
        while not released.done():
            await response.write(b" ")
            await asyncio.wait([released], timeout=TRICKLE_SECONDS)
    finally:
        released.cancel()
    _transport(request).close()
    return response


async def _endless(
    request: web.Request, whole: bytes, pause: Callable[[], Awaitable[None]]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    while True:
        await response.write(b" " * 2**18)


async def _crashed(
    request: web.Request, whole: bytes, pause: Callable[[], Awaitable[None]]
) -> web.StreamResponse:
    response = web.Response(status=500, text="Internal Server Error")
    await response.prepare(request)
    await response.write_eof()
    _transport(request).close()
    return response


async def _not_http(
    request: web.Request, whole: bytes, pause: Callable[[], Awaitable[None]]
) -> web.StreamResponse:
    transport = _transport(request)
    transport.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
    transport.close()
    return web.Response()


async def _begun(request: web.Request, length: int) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = length
    await response.prepare(request)
    return response


def _transport(request: web.Request) -> asyncio.Transport:
    assert request.transport is not None
    return request.transport  # type: ignore[return-value]


ON_THE_WIRE: Mapping[Fault, Play] = {
    Fault.RESET: _reset,
    Fault.HALF: _half,
    Fault.STALL: _stall,
    Fault.TRICKLE: _trickle,
    Fault.ENDLESS: _endless,
    Fault.CRASHED: _crashed,
    Fault.NOT_HTTP: _not_http,
}
_BAD_LOGPROBS: Mapping[Fault, object] = {
    Fault.NAN: math.nan,
    Fault.INFINITE: math.inf,
    Fault.POSITIVE: 0.5,
    Fault.NULL: None,
    Fault.TEXT: "-1.5",
}


def error_503(message: str) -> dict[str, Any]:
    """The body with which SGLang says that it takes no more."""
    return {"object": "error", "message": message, "type": "503", "param": None, "code": 503}


_CANNED: Mapping[Fault, tuple[int, Any]] = {
    Fault.ABORTED: (
        200,
        {
            "text": "",
            "output_ids": [],
            "meta_info": {
                "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
                "completion_tokens": 0,
                "output_token_ids_logprobs": [],
            },
        },
    ),
    Fault.ERROR_IN_200: (
        200,
        {"error": {"message": "validation failed: The input is longer than", "code": 400}},
    ),
    Fault.NOT_JSON: (200, "<html>a proxy's page</html>"),
    Fault.LIST: (200, [{"text": "x"}]),
    Fault.REDIRECT: (302, "Found"),
    Fault.REFUSED: (
        400,
        {
            "object": "error",
            "message": "1 validation error:\n /opt/secret/path.py body={'input_ids': [17]}",
            "type": "Bad Request",
            "param": None,
            "code": 400,
        },
    ),
    Fault.TOO_LONG: (
        400,
        {"error": {"message": "Input length (40954 tokens) exceeds the maximum allowed length"}},
    ),
    Fault.UNAUTHORISED: (401, {"error": "Unauthorized"}),
    Fault.NO_ROUTE: (404, {"detail": "Not Found"}),
    Fault.CLIENT_GONE: (499, {"error": {"message": "client disconnected", "code": 499}}),
    Fault.QUEUE_FULL: (503, error_503("The request queue is full.")),
    Fault.WAITED_TOO_LONG: (503, error_503("Request waiting timeout reached.")),
    Fault.NOT_READY: (503, ""),
    Fault.TRUNCATED: (
        500,
        {"error": {"message": "response truncated before completion", "code": 500}},
    ),
    Fault.UPSTREAM: (
        500,
        {
            "error": {
                "type": "Internal Server Error",
                "code": "call_upstream_request_error",
                "message": "error sending request for url (http://10.0.0.7/secret)",
            }
        },
    ),
}
