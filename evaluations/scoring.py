"""From label log-probabilities to answers.

Pure arithmetic over finite numbers; nothing is rounded, so probabilities sum to 1 as closely as
floats can. Logarithms are natural.
"""

import math
from collections.abc import Sequence
from typing import Literal

from evaluations.questions import (
    Answer,
    ChoiceAnswer,
    ChoiceQuestion,
    NoulAnswer,
    NoulQuestion,
    Question,
    ScoreAnswer,
)

Method = Literal["entropy", "typesafe"]


def softmax(logprobs: Sequence[float], temperature: float = 1.0) -> tuple[float, ...]:
    """Normalise log-probabilities over the labels alone.

    Args:
        logprobs: in nats, finite, at least one.
        temperature: divides them first; above 1 it evens the distribution out.

    Raises:
        ValueError: a number is not finite, there is none, or the temperature is not positive.
    """
    if not logprobs or not all(map(math.isfinite, logprobs)):
        raise ValueError("Log-probabilities must be finite numbers, at least one.")
    if not temperature > 0:
        raise ValueError("The temperature must be positive.")
    highest = max(logprobs)  # taken off first, so that no exponential overflows
    weights = [math.exp((value - highest) / temperature) for value in logprobs]
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)


def expected_level(probabilities: Sequence[float]) -> float:
    """Σ i·pᵢ, in levels counted from 0."""
    return math.fsum(index * p for index, p in enumerate(probabilities))


def entropy_confidence(probabilities: Sequence[float]) -> float:
    """1 − H(p)/ln n, clamped to [0, 1]: 0 for an even distribution over n ≥ 2, 1 for certainty."""
    entropy = -math.fsum(p * math.log(p) for p in probabilities if p > 0)
    return _clamped(1 - entropy / math.log(len(probabilities)))


def typesafe_choice_confidence(probabilities: Sequence[float]) -> float:
    """(n·p_max − 1)/(n − 1) for n ≥ 2 options: how far the winner is above chance.

    Reproduces recorded answers of the hosted service, as does the formula for scores.
    """
    count = len(probabilities)
    return _clamped((count * max(probabilities) - 1) / (count - 1))


def typesafe_score_confidence(probabilities: Sequence[float]) -> float:
    """max(0, 1 − Σ pᵢ·|i − mode|/D) for n ≥ 2 levels: how closely they gather around the mode.

    D is the mean distance of all levels from the middle of the scale.
    """
    count = len(probabilities)
    mode = probabilities.index(max(probabilities))
    spread = math.fsum(p * abs(index - mode) for index, p in enumerate(probabilities))
    scale = math.fsum(abs(index - (count - 1) / 2) for index in range(count)) / count
    return _clamped(1 - spread / scale)


def answer_from(
    question: Question, logprobs: Sequence[float], *, temperature: float, method: Method
) -> Answer:
    """Read the answer to `question` off the log-probabilities of its labels.

    Args:
        question: what was asked.
        logprobs: in nats, one per option in the order shown; for a noul yes, then no.
        temperature: see `softmax`.
        method: how the confidence is computed.
    """
    probabilities = softmax(logprobs, temperature)
    if isinstance(question, NoulQuestion):
        return NoulAnswer(probabilities[0])
    if isinstance(question, ChoiceQuestion):
        by_option = dict(zip(question.options, probabilities, strict=True))
        measure = entropy_confidence if method == "entropy" else typesafe_choice_confidence
        best = max(by_option, key=by_option.__getitem__)
        return ChoiceAnswer(best, measure(probabilities), by_option)
    measure = entropy_confidence if method == "entropy" else typesafe_score_confidence
    level = expected_level(probabilities)
    return ScoreAnswer(level, measure(probabilities), question.levels, probabilities)


def _clamped(value: float) -> float:
    return min(1.0, max(0.0, value))
