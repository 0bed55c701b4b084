"""An engine that lives in the test: answers what it is told to and remembers what it was asked."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from backend import protocol
from backend.description import EngineDescription
from backend.errors import EngineTimeout, EngineUnavailable
from backend.protocol import LabelLogprobs

Answer = Callable[["Call"], Awaitable[tuple[float, ...]]]


@dataclass(frozen=True, slots=True)
class Call:
    """One asked call."""

    input_ids: tuple[int, ...]
    label_ids: tuple[int, ...]
    rid: str
    deadline: float
    routing_key: str


async def first_label_wins(call: Call) -> tuple[float, ...]:
    """The first label gets 3/4 of what the labels get together, the others share the rest."""
    others = len(call.label_ids) - 1
    return (-0.3, *([-1.4] * others))


@dataclass
class StandIn:
    """Stands in for `backend.engine.Engine`."""

    answer: Answer = first_label_wins
    model: str = "tiny/random"
    max_input_tokens: int | None = 1_000_000
    vocabulary_size: int | None = None
    tokens: list[int] | None = None  # what it says a text consists of
    flags: tuple[str, ...] = ()
    cached_tokens: int | None = 7
    healthy: bool = True
    reachable: bool = True
    calls: list[Call] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    under_way: int = 0
    described: int = 0
    health_checks: int = 0
    closed: bool = False

    async def label_logprobs(
        self, calls: Sequence[protocol.Call], *, deadline: float, routing_key: str
    ) -> list[LabelLogprobs]:
        asked = [
            Call(tuple(call.input_ids), tuple(call.label_ids), call.rid, deadline, routing_key)
            for call in calls
        ]
        tasks = [asyncio.create_task(self._asked(call)) for call in asked]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _asked(self, call: Call) -> LabelLogprobs:
        self.calls.append(call)
        self.under_way += 1
        try:
            async with asyncio.timeout_at(call.deadline):
                logprobs = await self._answered(call)
        except TimeoutError:
            raise EngineTimeout() from None
        finally:
            self.under_way -= 1
        return LabelLogprobs(logprobs, len(call.input_ids), 1, self.cached_tokens)

    async def _answered(self, call: Call) -> tuple[float, ...]:
        try:
            return await self.answer(call)
        except asyncio.CancelledError:
            self.cancelled.append(call.rid)
            raise

    async def describe(self, *, deadline: float) -> EngineDescription:
        if not self.reachable:
            raise EngineUnavailable("The engine cannot be reached.")
        self.described += 1
        return EngineDescription(
            self.model,
            self.max_input_tokens,
            self.max_input_tokens,
            "python",
            "1",
            True,
            True,
            self.flags,
        )

    async def tokenize(self, text: str, *, deadline: float) -> list[int] | None:
        return self.tokens

    async def is_healthy(self, *, deadline: float) -> bool:
        self.health_checks += 1
        return self.healthy

    async def aclose(self) -> None:
        self.closed = True
