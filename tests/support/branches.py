"""The prompts that the product makes of a request, for a second opinion on their answers."""

import asyncio
from typing import Any, TypeAlias

import pytest

from backend.client import EngineClient
from backend.config import Config
from evaluations.question_text import option_count
from evaluations.readout import Readout
from evaluations.runtime import Runtime
from evaluations.serializers import read_evaluation

Branch: TypeAlias = tuple[list[int], list[int]]
"""Token ids of a whole prompt, and of the labels of its options."""


def readout_of(config: Config) -> Readout:
    """The readout that a server with these settings arrives at, from the engine they name."""
    return asyncio.run(_readout(config))


async def _readout(config: Config) -> Readout:
    runtime = Runtime(config, EngineClient(config.backend_url, api_key=config.backend_api_key))
    runtime.start()
    try:
        for _ in range(600):
            if runtime.readout is not None:
                return runtime.readout
            await asyncio.sleep(0.1)
        pytest.fail("no readout within a minute")
    finally:
        await runtime.stop()


def branches(
    state: object, questions: dict[str, Any], readout: Readout, config: Config
) -> dict[str, Branch]:
    """What the model is asked for each question."""
    request = read_evaluation({"model": "jev-latest", "state": state, "questions": questions})
    prompt = readout.prompt(request, limit=config.max_input_tokens)
    return {
        question.id: (
            list(prompt.prefix_ids + suffix),
            list(readout.label_ids(option_count(question))),
        )
        for question, suffix in zip(request.questions, prompt.suffix_ids, strict=True)
    }


def distribution(answer: dict[str, Any]) -> list[float]:
    """The probabilities of an answer, in the order of its options."""
    if answer["type"] == "noul":
        return [answer["noul"], 1 - answer["noul"]]
    return list(answer["probabilities"].values())
