"""What an evaluation costs the event loop, from the edge to the engine's client and back.

Everything is real here but the engine, which answers at once, and the model, of which only the
tokenizer is there.
"""

import asyncio
import gc
import gzip
import json
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from django.test import override_settings

from backend import plain_encoder
from backend.client import EngineClient
from backend.config import load_config
from backend.errors import EngineUnavailable
from backend.tokenizer import ChatTokenizer, load_tokenizer
from evaluations import views
from evaluations.readout import Readout
from evaluations.runtime import Runtime
from openjev_site.decoding import Decoder
from openjev_site.edge import build_application
from tests.openjev_site.exchange import DISCONNECT, body_events, exchange
from tests.support.instant_engine import InstantEngine
from tests.support.served import tiny_settings

QUESTIONS = {
    "refund": {"type": "noul", "instructions": "Is a refund wanted?"},
    "team": {"type": "choice", "criteria": {"billing": "Money", "it": "Computers", "hr": None}},
    "urgency": {"type": "score", "criteria": ["low", "middle", "high"]},
}
SENTENCE = "The customer was charged twice and asks for a refund of the second payment. "
SHORT = SENTENCE * 10
LONG = SENTENCE * 100
VERY_LONG = SENTENCE * 1000  # 63,000 of the tiny model's tokens

PADDING = "x" * 100_000  # ignored like every unknown field
PADDED = {"model": "jev-latest", "state": SHORT, "questions": QUESTIONS, "padding": PADDING}
_JSON = "application/json"

STALL_SECONDS = 0.05
ROUNDS = 5


@pytest.fixture(scope="module")
def exact_tokenizer(tiny_gguf: Path) -> Iterator[ChatTokenizer]:
    """The tiny model's, without an accelerator that would make long states short work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_encoder, "_fastokens", lambda tokenizer: None)
        yield load_tokenizer(load_config(tiny_settings(tiny_gguf))[0])


@pytest.fixture
async def app(
    tiny_gguf: Path, exact_tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Any]:
    """The whole application, ready."""
    more = {"OPENJEV_MAX_INPUT_TOKENS": "65536", "OPENJEV_MAX_TOTAL_INPUT_TOKENS": "400000"}
    config, problems = load_config({**tiny_settings(tiny_gguf), **more})
    assert not problems
    engine = InstantEngine(config.served_model_name, 70_000)
    client = EngineClient(config.backend_url, transport=engine)
    runtime = Runtime(config, client, lambda _: exact_tokenizer)
    monkeypatch.setattr(views, "get_runtime", lambda: runtime)
    with override_settings(OPENJEV=config):
        app = build_application(config, lambda: runtime)
        runtime.start()
        async with asyncio.timeout(30):
            while runtime.status == "starting":  # noqa: ASYNC110 - the state has no event
                await asyncio.sleep(0.01)
        assert runtime.status == "ok"
        yield app
        await runtime.stop()


async def evaluate(app: Any, state: str, coding: str = "") -> None:
    """Post an evaluation, and see it answered."""
    body = json.dumps({"model": "jev-latest", "state": state, "questions": QUESTIONS}).encode()
    headers = [("Content-Type", "application/json")]
    if coding:
        headers.append(("Content-Encoding", coding))
        body = gzip.compress(body)
    reply = await exchange(app, headers=headers, chunks=[body])
    assert reply.status == 200, reply.body
    assert set(reply.json["answers"]) == set(QUESTIONS)


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is handed to threads; everything goes this way, Django's own hops included."""
    handed: list[Any] = []
    original = asyncio.BaseEventLoop.run_in_executor

    def run_in_executor(self: Any, executor: Any, work: Any, *args: Any) -> Any:
        handed.append(work)
        return original(self, executor, work, *args)

    monkeypatch.setattr(asyncio.BaseEventLoop, "run_in_executor", run_in_executor)
    return handed


@pytest.fixture
def off_the_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of the steps that grow with a request were taken in another thread."""
    seen: list[str] = []
    loop_thread = threading.get_ident()

    def watch(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def step(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != loop_thread:
                seen.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, step)

    watch(Decoder, "feed")
    watch(views, "read_evaluation")
    watch(Readout, "prompt")
    return seen


@pytest.mark.parametrize(
    ("state", "coding", "threaded"),
    [
        (SHORT, "", []),
        (LONG, "", ["prompt"]),
        (VERY_LONG, "", ["read_evaluation", "prompt"]),
        (SHORT, "gzip", ["feed"]),
    ],
    ids=["short", "long", "very long", "compressed"],
)
async def test_only_what_takes_long_goes_to_a_thread(
    app: Any,
    hops: list[Any],
    off_the_loop: list[str],
    state: str,
    coding: str,
    threaded: list[str],
) -> None:
    for _ in range(2):  # nothing hangs on being the first
        await evaluate(app, state, coding)
        assert off_the_loop == threaded
        assert len(hops) == len(threaded)
        off_the_loop.clear()
        hops.clear()


async def test_a_refused_request_goes_to_no_thread(app: Any, hops: list[Any]) -> None:
    reply = await exchange(app, headers=[("Content-Type", "application/json")], chunks=[b"{}"])
    assert reply.status == 422
    assert hops == []


async def post_padded(app: Any, *, leaves: bool = False, **headers: str) -> int:
    """Post a padded body, perhaps without waiting for the answer; its status, or 499."""
    named = {"Content-Type": _JSON, **{name.replace("_", "-"): v for name, v in headers.items()}}
    events = body_events([json.dumps(PADDED).encode()])
    if leaves:
        events.append(DISCONNECT)
    # in a task of its own, as a server does it
    reply = await asyncio.create_task(exchange(app, headers=named.items(), events=events))
    return reply.status if reply.events else 499


def longest_left_to_the_collector() -> int:
    """The length of the longest text that is in no use and has not been freed either."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    left = [held for found in gc.garbage for held in gc.get_referents(found)]
    gc.garbage.clear()
    return max((len(text) for text in left if isinstance(text, str | bytes)), default=0)


async def assert_freed(app: Any, status: int, *, leaves: bool = False, **headers: str) -> None:
    gc.collect()
    gc.disable()
    try:
        assert await post_padded(app, leaves=leaves, **headers) == status
        await asyncio.sleep(0.01)  # what was cancelled ends
        assert longest_left_to_the_collector() < len(PADDING)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, {}),
        (200, {"Content_Type": f"{_JSON}; charset=utf-8"}),
        (200, {"Accept": f"{_JSON}; indent=2"}),
        (200, {"Accept": "text/html"}),
        (406, {"Accept": "text/plain"}),
        (415, {"Content_Type": "text/plain"}),
    ],
)
async def test_a_body_is_freed_with_its_answer(
    app: Any, status: int, headers: dict[str, str]
) -> None:
    await assert_freed(app, status, **headers)


async def test_a_body_that_is_refused_is_freed(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PADDED, "model", "another")
    await assert_freed(app, 400)
    monkeypatch.setitem(PADDED, "questions", {})
    await assert_freed(app, 422)


async def test_a_body_is_freed_when_the_engine_fails_or_the_client_leaves(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = InstantEngine.begin_post

    def fail(self: Any, path: str, body: bytes, tell: Any, **more: Any) -> Any:
        if b'.0002"' in body:
            return asyncio.get_running_loop().call_soon(tell, EngineUnavailable("away"))
        return answer(self, path, body, tell, **more)

    def hang(self: Any, path: str, body: bytes, tell: Any, **more: Any) -> Any:
        if b'.0002"' in body:
            return asyncio.get_running_loop().call_later(3600, tell, EngineUnavailable("late"))
        return answer(self, path, body, tell, **more)

    monkeypatch.setattr(InstantEngine, "begin_post", hang)
    await assert_freed(app, 499, leaves=True)
    monkeypatch.setattr(InstantEngine, "begin_post", fail)
    await assert_freed(app, 503)


async def test_a_failure_of_ours_frees_the_body(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(body: Any) -> Any:
        raise ValueError

    monkeypatch.setattr(views, "read_evaluation", fail)
    await assert_freed(app, 500)


async def test_a_very_long_state_keeps_nobody_waiting(app: Any) -> None:
    slowest = [await slowest_liveness(app, evaluate(app, VERY_LONG)) for _ in range(ROUNDS)]
    # the loop would be kept longer in every round, a busy machine keeps it in some
    assert min(slowest) < STALL_SECONDS, slowest


async def slowest_liveness(app: Any, work: Coroutine[Any, Any, None]) -> float:
    """Seconds that the slowest answer of `/health/live` took while `work` was done."""
    waited = []
    working = asyncio.create_task(work)
    while not working.done():
        begun = perf_counter()
        await asyncio.sleep(0.001)
        assert (await exchange(app, "GET", "/health/live")).status == 200
        waited.append(perf_counter() - begun)
    await working
    return max(waited)
