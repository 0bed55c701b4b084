"""One evaluation: prepare the prompt, warm the prefix up, ask all questions at once, read answers.

Everything ends with the request: a failed or cancelled evaluation leaves no call behind. Admission
and readiness are the caller's (`evaluations.runtime`).
"""

import asyncio
import random
from time import perf_counter

from backend.config import Config
from backend.engine import Engine
from backend.errors import EngineTimeout
from backend.protocol import Call
from evaluations.admission import check_budgets
from evaluations.exceptions import DeadlineExceeded
from evaluations.prompts import Prompt, length
from evaluations.question_text import option_count
from evaluations.questions import Evaluation, EvaluationRequest, Timing
from evaluations.readout import Readout
from evaluations.scoring import answer_from

INLINE_CHARACTERS = 3000
"""A longer request is rendered and encoded in a thread; a shorter one of ordinary text takes about
a millisecond, of which going to a thread and back would be a tenth. Text that is random in many
scripts takes up to four, without `fastokens`."""


async def evaluate(
    request: EvaluationRequest, *, readout: Readout, engine: Engine, config: Config
) -> Evaluation:
    """Answer every question of a request.

    Args:
        request: what is asked.
        readout: how it is shown and read.
        engine: the engine.
        config: limits, deadline, temperature and confidence.

    Raises:
        InvalidRequest: the state cannot be shown, or a token budget is exceeded; no engine call
            was made.
        DeadlineExceeded: `config.request_timeout` seconds were not enough.
        EngineError: a call failed; the others were cancelled.
    """
    deadline = asyncio.get_running_loop().time() + config.request_timeout
    try:
        return await _evaluate(request, readout, engine, config, deadline)
    except (TimeoutError, EngineTimeout):
        raise DeadlineExceeded(
            f"The evaluation took longer than {config.request_timeout:g} seconds. Send fewer "
            "questions or a shorter state, or try again when the server is less busy."
        ) from None


async def _evaluate(
    request: EvaluationRequest, readout: Readout, engine: Engine, config: Config, deadline: float
) -> Evaluation:
    begun = perf_counter()
    if length(request) <= INLINE_CHARACTERS:
        prompt = _prepare(request, readout, config)
    else:
        async with asyncio.timeout_at(deadline):  # each call to the engine keeps to it by itself
            prompt = await asyncio.to_thread(_prepare, request, readout, config)
    key = f"{random.getrandbits(128):032x}"
    prepared = perf_counter()
    (warm_up,) = await engine.label_logprobs(
        [Call(prompt.prefix_ids, readout.label_ids(1), _rid(key, 0))],
        deadline=deadline,
        routing_key=key,
    )
    warmed = perf_counter()
    branches = await engine.label_logprobs(
        _branches(request, prompt, readout, key), deadline=deadline, routing_key=key
    )
    finished = perf_counter()
    answers = {
        question.id: answer_from(
            question, branch.logprobs, temperature=config.temperature, method=config.confidence
        )
        for question, branch in zip(request.questions, branches, strict=True)
    }
    cached = [branch.cached_tokens for branch in branches]
    known = [tokens for tokens in cached if tokens is not None]
    return Evaluation(
        answers=answers,
        input_tokens=sum(call.prompt_tokens for call in (warm_up, *branches)),
        output_tokens=sum(call.completion_tokens for call in (warm_up, *branches)),
        prefix_tokens=len(prompt.prefix_ids),
        cached_tokens=sum(known) if len(known) == len(cached) else None,
        timing=Timing(
            prepare=prepared - begun, prefill=warmed - prepared, branches=finished - warmed
        ),
    )


def _prepare(request: EvaluationRequest, readout: Readout, config: Config) -> Prompt:
    prompt = readout.prompt(request, limit=config.max_input_tokens)
    check_budgets(
        len(prompt.prefix_ids),
        [len(ids) for ids in prompt.suffix_ids],
        [question.id for question in request.questions],
        max_input_tokens=config.max_input_tokens,
        max_total_input_tokens=config.max_total_input_tokens,
    )
    return prompt


def _branches(request: EvaluationRequest, prompt: Prompt, readout: Readout, key: str) -> list[Call]:
    asked = zip(request.questions, prompt.suffix_ids, strict=True)
    return [
        Call(
            prompt.prefix_ids + suffix_ids,
            readout.label_ids(option_count(question)),
            _rid(key, number),
        )
        for number, (question, suffix_ids) in enumerate(asked, start=1)
    ]


def _rid(key: str, number: int) -> str:
    # All are of one width: SGLang aborts every call whose rid *begins* with the one named.
    return f"{key}.{number:04d}"
