"""Whole evaluations on a running engine with the tiny random model."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from backend.client import EngineClient
from backend.config import Config
from backend.tokenizer import ChatTokenizer
from evaluations.questions import (
    Answer,
    ChoiceAnswer,
    ChoiceQuestion,
    EvaluationRequest,
    NoulAnswer,
    NoulQuestion,
    ScoreQuestion,
)
from evaluations.runtime import Runtime

pytestmark = pytest.mark.process

STATE = "The customer was charged twice and asks for a refund. " * 5
QUESTIONS = (
    NoulQuestion("refund", "Is a refund wanted?"),
    ChoiceQuestion("team", {"billing": "Money", "it": "Computers", "hr": None}, "Who?"),
    ScoreQuestion("urgency", ("low", "middle", "high")),
)


@pytest.fixture
async def runtime(
    tiny_engine: str, config: Config, tiny_tokenizer: ChatTokenizer
) -> AsyncIterator[Runtime]:
    config = replace(config, backend_url=tiny_engine, max_input_tokens=4_096)
    runtime = Runtime(config, EngineClient(tiny_engine), lambda config: tiny_tokenizer)
    runtime.start()
    async with asyncio.timeout(30):
        while runtime.status == "starting":  # noqa: ASYNC110 - the state has no event
            await asyncio.sleep(0.01)
    assert runtime.status == "ok", await runtime.health()
    yield runtime
    await runtime.stop()


def numbers(answer: Answer) -> list[float]:
    if isinstance(answer, NoulAnswer):
        return [answer.noul]
    if isinstance(answer, ChoiceAnswer):
        return list(answer.probabilities.values())
    return list(answer.probabilities)


async def test_branches_reuse_the_prefix(runtime: Runtime) -> None:
    request = EvaluationRequest("jev-latest", STATE, QUESTIONS)
    for _ in range(2):
        evaluation = await runtime.evaluate(request)
        assert evaluation.cached_tokens is not None
        assert evaluation.cached_tokens >= 3 * evaluation.prefix_tokens
        assert evaluation.output_tokens == 4


async def test_names_neighbours_and_order_move_no_answer(runtime: Runtime) -> None:
    alone = {}
    for question in QUESTIONS:
        request = EvaluationRequest("jev-latest", STATE, (question,))
        alone |= (await runtime.evaluate(request)).answers
    renamed = tuple(q._replace(id=f"other name {q.id}") for q in reversed(QUESTIONS))
    request = EvaluationRequest("jev-latest", STATE, (*renamed, NoulQuestion("more", "More?")))
    together = (await runtime.evaluate(request)).answers
    for question in QUESTIONS:
        answer = together[f"other name {question.id}"]
        assert numbers(answer) == pytest.approx(numbers(alone[question.id]), abs=1e-5)
