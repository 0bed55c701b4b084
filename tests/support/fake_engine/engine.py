"""The fake engine itself: what it has seen, what it is to do, and its routes."""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from tests.support.fake_engine import shapes
from tests.support.fake_engine.faults import ON_THE_WIRE, Call, Fault, canned, error_503, spoilt
from tests.support.fake_engine.shapes import Front


@dataclass(slots=True)
class _Rule:
    fault: Fault
    times: int | None
    when: Callable[[Call], bool] | None
    among: int

    def applies(self, call: Call) -> bool:
        if self.times == 0 or (self.when is not None and not self.when(call)):
            return False
        if self.times is not None:
            self.times -= 1
        return True


_WELL_BEHAVED = _Rule(Fault.NONE, None, None, 0)


@dataclass
class FakeEngine:
    """The engine's state and its script; see the package's docstring.

    Attributes:
        front: `rust` lacks cached counts, `/abort_request` and `/server_info`'s longest input.
        delay: seconds before every answer of `/generate`.
        health_delay: seconds before its state and `/health` are told (a busy one finishes a step).
        healthy: both are answered 503 while false.
        queue_limit: calls at once before 503.
        broken: by path, what another route than `/generate` does instead.
        info: further facts in `/server_info`, the server's flags for one.
        tokenize: answers `/tokenize`, which only the Python front has; 404 without.
    """

    front: Front = "python"
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
    broken: dict[str, Fault] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    tokenize: Callable[[str], list[int]] | None = None
    url: str = ""
    calls: list[Call] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    disconnects: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)  # "GET /health", in order of arrival
    killed_by: list[str] = field(default_factory=list)
    running: int = 0
    peak: int = 0
    _rules: list[_Rule] = field(default_factory=list)
    _seen: list[tuple[int, ...]] = field(default_factory=list)
    _held: list[tuple[str, asyncio.Event]] = field(default_factory=list)
    _awake: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _runner: web.AppRunner | None = None
    _site: web.TCPSite | None = None

    def __post_init__(self) -> None:
        self._awake.set()

    def play(
        self,
        fault: Fault,
        *,
        times: int | None = None,
        when: Callable[[Call], bool] | None = None,
        among: int = 0,
    ) -> None:
        """Play `fault` for matching calls from now on, before any rule given earlier.

        Args:
            fault: what to do; `NONE` for all calls forgets every rule.
            times: how often at most.
            when: which calls.
            among: not before so many calls are being answered.
        """
        if fault is Fault.NONE and when is None:
            self._rules.clear()
            return
        self._rules.insert(0, _Rule(fault, times, when, among))

    def release(self) -> None:
        """Let every hanging call answer."""
        for _, event in self._held:
            event.set()

    def hang(self) -> None:
        """Answer nothing any more, on no route; connections stay open and are accepted."""
        self._awake.clear()

    async def die(self) -> None:
        """Reset every connection and close the port."""
        assert self._runner is not None
        assert self._runner.server is not None
        if self._site is not None:
            await self._site.stop()
            self._site = None
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    async def revive(self) -> None:
        """Listen and answer again, on the same port."""
        self._awake.set()
        host, port = self.url.removeprefix("http://").split(":")
        await self._listen(host, int(port))

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
        app = web.Application(middlewares=[self._at_the_door], client_max_size=2**26)
        app.router.add_post("/generate", self._generate)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/model_info", self._model_info)
        app.router.add_get("/server_info", self._server_info)
        if self.front == "python":
            app.router.add_get("/get_server_info", self._server_info)
            app.router.add_route("*", "/flush_cache", self._flush_cache)
            app.router.add_post("/tokenize", self._tokenize)
        if self.has_abort and self.front == "python":
            app.router.add_post("/abort_request", self._abort_request)
        return app

    @web.middleware
    async def _at_the_door(
        self, request: web.Request, handler: Callable[[web.Request], Any]
    ) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        await self._notify()
        if request.path != "/generate":
            await self._awake.wait()
        expected = f"Bearer {self.api_key}"
        if (
            self.api_key is not None
            and not request.path.startswith("/health")
            and request.headers.get("Authorization") != expected
        ):
            return web.json_response({"error": "Unauthorized"}, status=401)
        if fault := self.broken.get(request.path):
            return await self._misbehave(request, request.path, fault, b'{"object": "list"}')
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
                return web.json_response(error_503("The request queue is full."), status=503)
            await asyncio.sleep(self.delay)
            rule = next((rule for rule in self._rules if rule.applies(call)), _WELL_BEHAVED)
            await self.wait_for(lambda engine: engine.running >= rule.among)
            await self._awake.wait()
            return await self._answer(request, call, rule.fault)
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
        facts = {"context_length": self.context_length, "vocabulary_size": self.vocabulary_size}
        if self.front == "python" and (reason := shapes.lethal(call, **facts)):
            self.killed_by.append(reason)
            self.hang()
            await self._awake.wait()
        refusal = shapes.refusal(call, front=self.front, **facts)
        if refusal is not None and fault is Fault.NONE:
            return web.json_response(refusal, status=400)
        answer = spoilt(
            shapes.success(
                call,
                self.logprobs(call.input_ids),
                front=self.front,
                cached=self._use_cache(call.input_ids),
            ),
            fault,
        )
        return await self._misbehave(request, call.rid, fault, json.dumps(answer).encode())

    async def _misbehave(
        self, request: web.Request, name: str, fault: Fault, whole: bytes
    ) -> web.StreamResponse:
        if fault is Fault.HANG:
            await self._hold(name)
        if response := canned(fault):
            return response
        if fault in ON_THE_WIRE:
            return await ON_THE_WIRE[fault](request, whole, lambda: self._hold(name))
        return web.Response(body=whole, content_type="application/json")

    async def _hold(self, name: str) -> None:
        held = (name, asyncio.Event())
        self._held.append(held)
        try:
            await held[1].wait()
            await self._awake.wait()
        finally:
            self._held.remove(held)

    def _use_cache(self, ids: tuple[int, ...]) -> int:
        longest = max((shapes.common_prefix(ids, seen) for seen in self._seen), default=0)
        self._seen.append(ids)
        return min(longest, len(ids) - 1) // self.page * self.page

    async def _health(self, request: web.Request) -> web.Response:
        if self.running:
            self.killed_by.append("/health, whose request has no log-probabilities, beside ours")
        await asyncio.sleep(self.health_delay)
        return web.Response(status=200 if self.healthy else 503)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(shapes.models(self.model, self.context_length))

    async def _model_info(self, request: web.Request) -> web.Response:
        return web.json_response(shapes.model_info(self.model))

    async def _server_info(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.health_delay)
        if not self.healthy:
            raise web.HTTPServiceUnavailable
        facts = shapes.server_info(
            self.model, self.context_length, front=self.front, api_key=self.api_key
        )
        return web.json_response(facts | self.info)

    async def _tokenize(self, request: web.Request) -> web.Response:
        if self.tokenize is None:
            raise web.HTTPNotFound
        ids = self.tokenize((await request.json())["prompt"])
        facts = {"tokens": ids, "count": len(ids), "max_model_len": self.context_length}
        return web.json_response(facts)

    async def _flush_cache(self, request: web.Request) -> web.Response:
        self._seen.clear()
        return web.Response(text="Cache flushed.\n")

    async def _abort_request(self, request: web.Request) -> web.Response:
        rid = (await request.json()).get("rid", "")
        self.aborts.append(rid)
        for held, event in self._held:
            if held.startswith(rid):  # SGLang aborts by prefix
                event.set()
        await self._notify()
        return web.Response()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _listen(self, host: str, port: int) -> None:
        assert self._runner is not None
        self._site = web.TCPSite(self._runner, host, port)
        await self._site.start()
        bound = self._runner.addresses[0]
        self.url = f"http://{bound[0]}:{bound[1]}"


@asynccontextmanager
async def serve_fake_engine(
    engine: FakeEngine, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[FakeEngine]:
    """Serve `engine` while the context lasts; its `url` is set on entry."""
    engine._runner = runner = web.AppRunner(
        engine.application(),
        handler_cancellation=True,  # so that a client's hang-up is seen
        access_log=None,
        shutdown_timeout=0.1,
    )
    await runner.setup()
    try:
        await engine._listen(host, port)
        yield engine
    finally:
        engine.release()
        await runner.cleanup()
