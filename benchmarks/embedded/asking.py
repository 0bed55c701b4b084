"""A model behind the engine's own queue, asked directly: no HTTP, and the caller's text is random.

The arithmetic does not depend on what the tokens mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from backend.embedded.model import Model
from backend.embedded.requests import Request, Result
from backend.embedded.scheduler import Scheduler
from benchmarks.embedded.taken import Taken, timed

_LABELS = 26
_FOREVER = 3600.0
_PLENTY = 2**33


@dataclass(frozen=True, slots=True)
class Work:
    """What is asked: token ids.

    Attributes:
        state: that all questions are about.
        questions: each one's.
        labels: whose log-probabilities are wanted.
    """

    state: list[int]
    questions: list[list[int]]
    labels: list[int]

    @classmethod
    def random(cls, vocabulary: int, *, state: int, questions: int, question_tokens: int) -> Self:
        """So many tokens and questions, the same ones each time."""
        generator = np.random.default_rng(0)
        return cls(
            generator.integers(0, vocabulary, state).tolist(),
            generator.integers(0, vocabulary, (questions, question_tokens)).tolist(),
            generator.integers(0, vocabulary, _LABELS).tolist(),
        )

    def prompts(self, questions: int | None = None) -> list[list[int]]:
        """State and question, for the first so many questions."""
        return [self.state + question for question in self.questions[:questions]]


class Asked:
    """The engine, for one body of work; a context manager."""

    def __init__(self, model: Model, labels: Sequence[int], *, cached: bool = True) -> None:
        self._labels = tuple(labels)
        self._scheduler = Scheduler(
            lambda stop: model, cache_bytes=_PLENTY if cached else 0, queue_limit=10**4
        )

    def __enter__(self) -> Self:
        self._scheduler.start()
        self._scheduler.ready.result(_FOREVER)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._scheduler.close()

    def together(self, prompts: Sequence[Sequence[int]]) -> tuple[Taken, list[Result]]:
        """Ask all at once, and wait for the last answer."""

        def ask() -> list[Result]:
            requests = [Request(str(n), tuple(ids), self._labels) for n, ids in enumerate(prompts)]
            self._scheduler.submit(requests)
            return [request.future.result(_FOREVER) for request in requests]

        return timed(ask)

    def in_turn(self, prompts: Sequence[Sequence[int]]) -> tuple[Taken, list[Result]]:
        """Ask each when the one before is answered."""
        taken, results = Taken(), []
        for prompt in prompts:
            step, answers = self.together([prompt])
            taken += step
            results += answers
        return taken, results


def difference(left: Sequence[Result], right: Sequence[Result]) -> float:
    """Largest difference of normalised label probabilities."""
    pairs = zip(left, right, strict=True)
    return max(float(np.abs(_shares(a) - _shares(b)).max()) for a, b in pairs)


def _shares(result: Result) -> np.ndarray[Any, np.dtype[np.float64]]:
    weights = np.exp(np.array(result.logprobs) - max(result.logprobs))
    shares: np.ndarray[Any, np.dtype[np.float64]] = weights / weights.sum()
    return shares
