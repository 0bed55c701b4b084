"""A runtime that answers at once, evenly, and remembers what it was asked."""

from dataclasses import dataclass, field

from evaluations.questions import (
    Answer,
    ChoiceAnswer,
    ChoiceQuestion,
    Evaluation,
    EvaluationRequest,
    NoulAnswer,
    NoulQuestion,
    Question,
    ScoreAnswer,
    Timing,
)
from evaluations.runtime import Status


@dataclass
class StandInReadout:
    version: str = "0123456789ab"


@dataclass
class StandInRuntime:
    """Has the part of `evaluations.runtime.Runtime` that the views use.

    `failure` is raised instead of an answer.
    """

    asked: list[EvaluationRequest] = field(default_factory=list)
    failure: BaseException | None = None
    cached_tokens: int | None = 7
    status: Status = "ok"
    startup_seconds: float | None = 1.5
    readout: StandInReadout | None = field(default_factory=StandInReadout)

    def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def health(self) -> Status:
        return self.status

    async def evaluate(self, request: EvaluationRequest) -> Evaluation:
        self.asked.append(request)
        if self.failure is not None:
            raise self.failure
        return Evaluation(
            answers={question.id: _even(question) for question in request.questions},
            input_tokens=100,
            output_tokens=len(request.questions) + 1,
            prefix_tokens=40,
            cached_tokens=self.cached_tokens,
            timing=Timing(prepare=0.001, prefill=0.02, branches=0.3),
        )


def _even(question: Question) -> Answer:
    if isinstance(question, NoulQuestion):
        return NoulAnswer(1 / 3)
    if isinstance(question, ChoiceQuestion):
        share = 1 / len(question.options)
        first = next(iter(question.options))
        return ChoiceAnswer(first, 0.0, dict.fromkeys(question.options, share))
    count = len(question.levels)
    return ScoreAnswer((count - 1) / 2, 0.0, question.levels, (1 / count,) * count)
