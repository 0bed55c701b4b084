"""A scriptable stand-in for SGLang on a loopback port.

It speaks the native protocol in the shapes seen on real servers and can play every fault a client
must survive. In a test (fixture `fake_engine` in `tests/conftest.py`)::

    fake_engine.play(Fault.NAN)                     # every call to /generate from now on
    fake_engine.play(Fault.HANG, times=1)           # only the next one
    fake_engine.play(Fault.ABORTED, when=lambda call: call.rid.endswith(".002"))
    fake_engine.play(Fault.NONE)                    # well-behaved again

    fake_engine.calls        # every /generate that arrived, as `Call`
    fake_engine.aborts       # rids posted to /abort_request
    fake_engine.disconnects  # rids of calls whose connection was closed before the answer
    fake_engine.running      # calls being answered now; `peak` is the most there ever were

Log-probabilities are a log-softmax over pseudo-random logits that depend on nothing but the input
ids, so `FakeEngine.logprobs(ids)` says what any call must answer. `bias[label_id] = 5.0` makes
label ids heavy. Cached tokens behave like a radix cache with pages of `page` tokens.

`python -m tests.support.fake_engine --port N` runs one as a process; it accepts, and ignores, the
embedded engine's options, and takes `--fault`, `--grandchild` and `--die-after SECONDS`.
"""

import argparse
import asyncio
import enum
import json
import math
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from aiohttp import web
from numpy.typing import NDArray


class Fault(enum.Enum):
    """What `/generate` does instead of answering properly."""

    NONE = "none"
    NAN = "nan"  # one label's log-probability is NaN
    INFINITE = "infinite"
    POSITIVE = "positive"
    NULL = "null"  # SGLang's value where it computed nothing
    SHORT = "short"  # the last label is missing
    MISSING = "missing"  # no output_token_ids_logprobs at all
    WRONG_COUNT = "wrong_count"  # prompt_tokens says the input was truncated
    ABORTED = "aborted"  # 200 with finish_reason abort
    ERROR_IN_200 = "error_in_200"  # the Rust front's way with an item of a batch
    NOT_JSON = "not_json"
    LIST = "list"  # the answer to a batch
    REFUSED = "refused"  # 400 whose message holds a server path and the body
    TOO_LONG = "too_long"
    UNAUTHORISED = "unauthorised"
    QUEUE_FULL = "queue_full"  # 503
    CRASHED = "crashed"  # 500 as bare text, then the connection is reset
    CLIENT_GONE = "client_gone"  # 499, how the Rust front ends an aborted call
    HANG = "hang"  # until aborted, released or disconnected
    RESET = "reset"  # closes without a byte
    HALF = "half"  # half an answer, then closes


@dataclass(frozen=True, slots=True)
class Call:
    """One `/generate` that arrived."""

    rid: str
    input_ids: tuple[int, ...]
    label_ids: tuple[int, ...]
    body: dict[str, Any]
    headers: dict[str, str]
    peer_port: int


@dataclass(slots=True)
class _Rule:
    fault: Fault
    times: int | None
    when: Callable[[Call], bool] | None

    def applies(self, call: Call) -> bool:
        if self.times == 0 or (self.when is not None and not self.when(call)):
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass
class FakeEngine:
    """The engine's state and its script; see the module's docstring.

    Attributes:
        front: `rust` lacks cached counts, `/abort_request` and `/server_info`'s longest input.
        delay: seconds before every answer of `/generate`.
        health_delay: seconds before `/health` answers (a real one takes at least 1 s).
        healthy: `/health` answers 503 while false.
        queue_limit: calls at once before 503.
    """

    front: Literal["python", "rust"] = "python"
    model: str = "fake/model"
    context_length: int = 4096
    vocabulary_size: int = 2048
    page: int = 1
    api_key: str | None = None
    delay: float = 0.0
    health_delay: float = 0.0
    healthy: bool = True
    has_abort: bool = True
    queue_limit: int = 10_000
    bias: dict[int, float] = field(default_factory=dict)
    url: str = ""
    calls: list[Call] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    disconnects: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)  # "GET /health", in order of arrival
    running: int = 0
    peak: int = 0
    _rules: list[_Rule] = field(default_factory=list)
    _seen: list[tuple[int, ...]] = field(default_factory=list)
    _held: dict[str, asyncio.Event] = field(default_factory=dict)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def play(
        self,
        fault: Fault,
        *,
        times: int | None = None,
        when: Callable[[Call], bool] | None = None,
    ) -> None:
        """Play `fault` for matching calls from now on, before any rule given earlier."""
        if fault is Fault.NONE and when is None:
            self._rules.clear()
            return
        self._rules.insert(0, _Rule(fault, times, when))

    def release(self) -> None:
        """Let every hanging call answer."""
        for event in self._held.values():
            event.set()

    async def wait_for(self, condition: Callable[["FakeEngine"], bool]) -> None:
        """Wait, at most 5 s, until `condition` holds; it is looked at after every change."""
        async with asyncio.timeout(5), self._changed:
            await self._changed.wait_for(lambda: condition(self))

    def logprobs(self, input_ids: Sequence[int]) -> NDArray[np.float64]:
        """The log-probabilities (nats) of the whole vocabulary after `input_ids`."""
        seed = zlib.crc32(json.dumps(list(input_ids)).encode())
        logits = np.random.default_rng(seed).normal(scale=2.0, size=self.vocabulary_size)
        for label_id, extra in self.bias.items():
            logits[label_id] += extra
        return logits - np.logaddexp.reduce(logits)

    def application(self) -> web.Application:
        """The aiohttp application that answers as this engine."""
        app = web.Application(middlewares=[self._note_and_authorise], client_max_size=2**26)
        app.router.add_post("/generate", self._generate)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/model_info", self._model_info)
        app.router.add_get("/server_info", self._server_info)
        if self.front == "python":
            app.router.add_get("/get_server_info", self._server_info)
            app.router.add_route("*", "/flush_cache", self._flush_cache)
        if self.has_abort and self.front == "python":
            app.router.add_post("/abort_request", self._abort_request)
        return app

    @web.middleware
    async def _note_and_authorise(
        self, request: web.Request, handler: Callable[[web.Request], Any]
    ) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        await self._notify()
        expected = f"Bearer {self.api_key}"
        if (
            self.api_key is not None
            and not request.path.startswith("/health")
            and request.headers.get("Authorization") != expected
        ):
            return web.json_response({"error": "Unauthorized"}, status=401)
        response: web.StreamResponse = await handler(request)
        return response

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        peer = request.transport.get_extra_info("peername") if request.transport else ("", 0)
        call = Call(
            rid=body.get("rid", ""),
            input_ids=tuple(body["input_ids"]),
            label_ids=tuple(body.get("token_ids_logprob", ())),
            body=body,
            headers={name.lower(): value for name, value in request.headers.items()},
            peer_port=peer[1],
        )
        self.calls.append(call)
        self.running += 1
        self.peak = max(self.peak, self.running)
        await self._notify()
        try:
            if self.running > self.queue_limit:
                return _error_503("The request queue is full.")
            await asyncio.sleep(self.delay)
            rule = next((rule for rule in self._rules if rule.applies(call)), None)
            return await self._answer(request, call, rule.fault if rule else Fault.NONE)
        except asyncio.CancelledError:
            self.disconnects.append(call.rid)
            raise
        finally:
            self.running -= 1
            await asyncio.shield(self._notify())

    async def _answer(self, request: web.Request, call: Call, fault: Fault) -> web.StreamResponse:
        if fault is Fault.HANG:
            await self._hold(call.rid)
            fault = Fault.ABORTED if call.rid in self.aborts else Fault.NONE
        if fault is Fault.RESET:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if fault is Fault.HALF:
            return await self._half(request, call)
        if fault is Fault.CRASHED:
            response = web.Response(status=500, text="Internal Server Error")
            await response.prepare(request)
            await response.write_eof()
            assert request.transport is not None
            request.transport.close()
            return response
        if fault in _BODIES:
            status, payload = _BODIES[fault]
            if isinstance(payload, str):
                return web.Response(status=status, text=payload)
            return web.json_response(payload, status=status)
        if refusal := self._refusal(call):
            return refusal
        return web.json_response(self._success(call, fault), dumps=json.dumps)

    async def _hold(self, rid: str) -> None:
        event = self._held[rid] = asyncio.Event()
        try:
            await event.wait()
        finally:
            self._held.pop(rid, None)

    async def _half(self, request: web.Request, call: Call) -> web.StreamResponse:
        whole = json.dumps(self._success(call, Fault.NONE)).encode()
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = len(whole)
        await response.prepare(request)
        await response.write(whole[: len(whole) // 2])
        assert request.transport is not None
        request.transport.close()
        return response

    def _refusal(self, call: Call) -> web.Response | None:
        if len(call.input_ids) >= self.context_length:
            return _error_400(
                f"The input ({len(call.input_ids)} tokens) is longer than the model's context "
                f"length ({self.context_length} tokens)."
            )
        for name, ids in (("input_ids", call.input_ids), ("token_ids_logprob", call.label_ids)):
            outside = [token for token in ids if not 0 <= token < self.vocabulary_size]
            if outside:
                return _error_400(
                    f"{name} contains out-of-vocabulary token id {outside[0]}; "
                    f"valid range is [0, {self.vocabulary_size})."
                )
        return None

    def _success(self, call: Call, fault: Fault) -> dict[str, Any]:
        logprobs = self.logprobs(call.input_ids)
        entries: list[list[Any]] = [[float(logprobs[i]), i, None] for i in call.label_ids]
        if entries and fault in _BAD_LOGPROBS:
            entries[-1][0] = _BAD_LOGPROBS[fault]
        if fault is Fault.SHORT:
            entries.pop()
        best = int(np.argmax(logprobs))
        meta: dict[str, Any] = {
            "id": call.rid,
            "finish_reason": {"type": "length", "length": 1},
            "prompt_tokens": len(call.input_ids) - (fault is Fault.WRONG_COUNT),
            "completion_tokens": 1,
            "output_token_logprobs": [[float(logprobs[best]), best, None]],
            "input_token_logprobs": [],
            "output_token_ids_logprobs": [entries],
            "e2e_latency": 0.17,
        }
        if fault is Fault.MISSING:
            del meta["output_token_ids_logprobs"]
        cached = self._use_cache(call.input_ids)
        if self.front == "python":
            meta |= {
                "weight_version": "default",
                "input_token_ids_logprobs": [],
                "cached_tokens": cached,
                "cached_tokens_details": {"device": cached, "host": 0} if cached else None,
            }
        return {"text": "x", "output_ids": [best], "meta_info": meta}

    def _use_cache(self, ids: tuple[int, ...]) -> int:
        longest = max((_common_prefix(ids, seen) for seen in self._seen), default=0)
        self._seen.append(ids)
        return min(longest, len(ids) - 1) // self.page * self.page

    async def _health(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.health_delay)
        return web.Response(status=200 if self.healthy else 503)

    async def _models(self, request: web.Request) -> web.Response:
        entry = {
            "id": self.model,
            "object": "model",
            "created": 1_790_000_000,
            "owned_by": "sglang",
            "root": self.model,
            "parent": None,
            "max_model_len": self.context_length,
        }
        return web.json_response({"object": "list", "data": [entry]})

    async def _model_info(self, request: web.Request) -> web.Response:
        facts = {"model_path": self.model, "served_model_name": self.model, "is_generation": True}
        return web.json_response(facts)

    async def _server_info(self, request: web.Request) -> web.Response:
        facts: dict[str, Any] = {"served_model_name": self.model, "version": "0.5.19"}
        if self.front == "python":
            facts |= {
                "max_req_input_len": self.context_length - 6,
                "api_key": self.api_key,  # the real one leaks it too
                "status": "ready",
            }
        return web.json_response(facts)

    async def _flush_cache(self, request: web.Request) -> web.Response:
        self._seen.clear()
        return web.Response(text="Cache flushed.\n")

    async def _abort_request(self, request: web.Request) -> web.Response:
        rid = (await request.json()).get("rid", "")
        self.aborts.append(rid)
        for held, event in self._held.items():
            if held.startswith(rid):  # SGLang aborts by prefix
                event.set()
        await self._notify()
        return web.Response()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


_BAD_LOGPROBS: dict[Fault, float | None] = {
    Fault.NAN: math.nan,
    Fault.INFINITE: math.inf,
    Fault.POSITIVE: 0.5,
    Fault.NULL: None,
}
_BODIES: dict[Fault, tuple[int, Any]] = {
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
    Fault.QUEUE_FULL: (
        503,
        {
            "object": "error",
            "message": "The request queue is full.",
            "type": "503",
            "param": None,
            "code": 503,
        },
    ),
    Fault.CLIENT_GONE: (499, {"error": {"message": "client disconnected", "code": 499}}),
}


def _error_400(message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=400)


def _error_503(message: str) -> web.Response:
    body = {"object": "error", "message": message, "type": "503", "param": None, "code": 503}
    return web.json_response(body, status=503)


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length


@asynccontextmanager
async def serve_fake_engine(
    engine: FakeEngine, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[FakeEngine]:
    """Serve `engine` while the context lasts; its `url` is set on entry."""
    runner = web.AppRunner(
        engine.application(),
        handler_cancellation=True,  # so that a client's hang-up is seen
        access_log=None,
        shutdown_timeout=0.1,
    )
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
        bound = runner.addresses[0]
        engine.url = f"http://{bound[0]}:{bound[1]}"
        yield engine
    finally:
        engine.release()
        await runner.cleanup()


async def _run_as_process(arguments: argparse.Namespace) -> None:
    engine = FakeEngine(
        model=arguments.served_model_name, context_length=int(arguments.context_length)
    )
    engine.play(Fault(arguments.fault))
    if arguments.grandchild:  # inherits our output, as an engine's workers do
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])  # noqa: ASYNC220
    async with serve_fake_engine(engine, host=arguments.host, port=arguments.port):
        print(f"fake engine on {engine.url}", flush=True)
        if arguments.die_after is None:
            await asyncio.Event().wait()
        await asyncio.sleep(arguments.die_after)
        print("the fake engine's last words", flush=True)
        sys.exit(3)


def main() -> None:
    """Run a fake engine as a process until it is told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", default="fake/model")
    parser.add_argument("--context-length", default="4096")
    parser.add_argument("--fault", default="none")
    parser.add_argument("--grandchild", action="store_true")
    parser.add_argument("--die-after", type=float)
    arguments, _ = parser.parse_known_args()
    asyncio.run(_run_as_process(arguments))


if __name__ == "__main__":
    main()
