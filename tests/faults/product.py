"""The whole ASGI application in front of a fake engine, both on the loop of the test."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.test import override_settings

from backend.config import load_config
from backend.lifespan import Lifespan
from evaluations.runtime import get_runtime
from openjev_site.edge import build_application
from tests.faults import leaks
from tests.faults.outcomes import BODY, STATE
from tests.openjev_site.exchange import DISCONNECT, Reply, body_events, exchange, http_scope
from tests.support.fake_engine import FakeEngine, serve_fake_engine
from tests.support.fake_engine.shapes import Front
from tests.support.served import tiny_settings
from tests.support.tiny_gguf import CONTROL_TOKENS, vocabulary

MODEL = "tiny/random"
VOCABULARY_SIZE = len(vocabulary()[0]) + len(CONTROL_TOKENS)
SETTLE_SECONDS = 10.0
_DRAIN_SECONDS = 5.0
_JSON = [("Content-Type", "application/json")]


@dataclass
class Product:
    """The application and the engine behind it.

    Attributes:
        app: takes requests as from any ASGI server.
        engine: the fake one.
        lifespan: of `app`; ended with the context, or before.
        resident: tasks that live as long as the server.
        unhandled: failures that nobody took, as the loop told them.
    """

    app: Any
    engine: FakeEngine
    lifespan: Lifespan
    resident: set[asyncio.Task[Any]] = field(default_factory=set)
    unhandled: list[dict[str, Any]] = field(default_factory=list)

    @property
    def engine_port(self) -> int:
        return int(self.engine.url.rsplit(":", 1)[1])

    async def evaluate(self, state: str = STATE) -> Reply:
        """Post the evaluation."""
        return await exchange(self.app, headers=_JSON, chunks=[_content(state)])

    async def health(self) -> Reply:
        """Ask how it is."""
        return await exchange(self.app, "GET", "/health")

    async def abandon(self, leaving: asyncio.Event) -> Reply:
        """Post the evaluation, and hang up when `leaving` is set."""
        waiting, reply = body_events([_content(STATE)]), Reply()

        async def receive() -> dict[str, Any]:
            if waiting:
                return waiting.pop()
            await leaving.wait()
            return DISCONNECT

        async def send(event: dict[str, Any]) -> None:
            reply.events.append(event)

        await self.app(http_scope(headers=_JSON), receive, send)
        return reply

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds."""
        async with asyncio.timeout(SETTLE_SECONDS):
            while not condition():  # noqa: ASYNC110 - of several objects, which have no event
                await asyncio.sleep(0.005)

    async def healths(self) -> AsyncIterator[str]:
        """What `/health` says, again and again."""
        async with asyncio.timeout(SETTLE_SECONDS):
            while True:
                yield (await self.health()).json["status"]
                await asyncio.sleep(0.01)

    async def until_ready(self) -> None:
        """Wait until `/health` says so."""
        async for said in self.healths():
            if said == "ok":
                break
        await self.settle()
        self.resident = leaks.tasks()

    async def settle(self) -> None:
        """Wait until the engine answers nothing and no task but the resident ones runs."""
        await self.until(lambda: self.engine.running == 0)
        if self.resident:
            await self.until(lambda: leaks.tasks() <= self.resident)

    def ports(self) -> set[int]:
        """Our ends of the connections to the engine."""
        return leaks.local_ports(self.engine_port)


def usual_engine(front: Front = "python", **changes: Any) -> FakeEngine:
    """A well-behaved engine that fits the tiny model's tokenizer."""
    usual = {"model": MODEL, "context_length": 16_384, "vocabulary_size": VOCABULARY_SIZE}
    return FakeEngine(front=front, **(usual | changes))


@asynccontextmanager
async def serve(
    gguf: Path, engine: FakeEngine | None = None, **settings: str
) -> AsyncIterator[Product]:
    """Serve the application while the context lasts, and find nothing left of it afterwards.

    Args:
        gguf: the tiny model, for its tokenizer.
        engine: another one than the usual, well-behaved Python front.
        settings: `OPENJEV_*` variables, without the prefix.
    """
    loop = asyncio.get_running_loop()
    before = leaks.tasks()
    gc.freeze()  # the collection at the end then looks at what was made meanwhile, no more
    engine = engine or usual_engine()
    async with serve_fake_engine(engine):
        chosen = {f"OPENJEV_{name}": value for name, value in settings.items()}
        config, problems = load_config(
            {**tiny_settings(gguf), "OPENJEV_BACKEND_URL": engine.url, **chosen}
        )
        assert not problems
        get_runtime.cache_clear()
        with override_settings(OPENJEV=config):
            app = build_application(config, get_runtime)
            product = Product(app, engine, Lifespan(app))
            loop.set_exception_handler(lambda _, context: product.unhandled.append(context))
            try:
                await product.lifespan.startup()
                yield product
            finally:
                engine.release()
                await product.lifespan.shutdown(_DRAIN_SECONDS)
                get_runtime.cache_clear()
        assert leaks.tasks() <= before
        assert product.ports() == set()
    gc.collect()  # a failure that nobody took is told when its task is collected
    gc.unfreeze()
    assert product.unhandled == []


def _content(state: str) -> bytes:
    return json.dumps({**BODY, "state": state}).encode()
