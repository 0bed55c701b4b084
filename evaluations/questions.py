"""What is asked and what is answered, as plain data.

Pure: no framework, no I/O, no token ids. `evaluations.serializers` builds the requests from JSON,
`evaluations.answers` writes the answers as JSON; everything in between works on these classes. They
are named tuples because a request makes a dozen, and frozen dataclasses take three times as long to
make.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

Content: TypeAlias = str | list[Any] | dict[str, Any]
"""Text, or JSON that is shown to the model in compact form."""


class NoulQuestion(NamedTuple):
    """Yes or no. `true` and `false` describe the sides; either or both may be missing."""

    id: str
    instructions: Content | None = None
    true: Content | None = None
    false: Content | None = None


class ChoiceQuestion(NamedTuple):
    """One of many. `options` keeps the request's order; a `None` description shows the key."""

    id: str
    options: Mapping[str, Content | None]
    instructions: Content | None = None


class ScoreQuestion(NamedTuple):
    """A place on an ordered scale; `levels` go from the lowest to the highest."""

    id: str
    levels: tuple[Content, ...]
    instructions: Content | None = None


Question: TypeAlias = NoulQuestion | ChoiceQuestion | ScoreQuestion


class EvaluationRequest(NamedTuple):
    """One valid request. `state` is still exactly what the caller sent."""

    model: str
    state: Content
    questions: tuple[Question, ...]


class NoulAnswer(NamedTuple):
    """The probability of yes."""

    noul: float


class ChoiceAnswer(NamedTuple):
    """The most probable option; `probabilities` keeps the question's order and sums to 1."""

    choice: str
    confidence: float
    probabilities: Mapping[str, float]


class ScoreAnswer(NamedTuple):
    """The expected level (the sum of index x probability) and the distribution behind it."""

    score: float
    confidence: float
    legend: tuple[Content, ...]
    probabilities: tuple[float, ...]


Answer: TypeAlias = NoulAnswer | ChoiceAnswer | ScoreAnswer


class Timing(NamedTuple):
    """Where the time of one evaluation went, in seconds."""

    prepare: float
    prefill: float
    branches: float


class Evaluation(NamedTuple):
    """All answers of one request, in its order, and what they cost.

    Attributes:
        answers: by question id.
        input_tokens: prompt tokens of the warm-up and every branch, cached ones included.
        output_tokens: generated tokens, one per engine call.
        prefix_tokens: length of the shared prefix.
        cached_tokens: prompt tokens of the branches that came from the engine's cache; `None` when
            the engine does not report it.
        timing: see `Timing`.
    """

    answers: Mapping[str, Answer]
    input_tokens: int
    output_tokens: int
    prefix_tokens: int
    cached_tokens: int | None
    timing: Timing
