"""How the cost of a request grows with its questions and with its state.

Every size is measured once, one after the other, so the ratios are of processor time: on a machine
that does other things as well the clock would compare how busy it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from backend.embedded.model import Model
from benchmarks.embedded.asking import Asked, Work
from benchmarks.embedded.taken import Taken

QUESTIONS = (1, 2, 4, 8, 16, 32, 64)
STATES = (100, 500, 1000, 2000, 4000, 8000)


@dataclass(frozen=True, slots=True)
class Point:
    """One size of request.

    Attributes:
        state_tokens: length of the state.
        questions: how many.
        state: reading the state.
        packed: all questions together, on the cached state.
    """

    state_tokens: int
    questions: int
    state: Taken
    packed: Taken

    @property
    def whole(self) -> Taken:
        """A first request."""
        return self.state + self.packed


def over_questions(model: Model, work: Work) -> list[Point]:
    """More and more questions on one state, as far as there are questions."""
    with Asked(model, work.labels) as engine:
        state, _ = engine.together([work.state])
        return [
            Point(len(work.state), count, state, engine.together(work.prompts(count))[0])
            for count in QUESTIONS
            if count <= len(work.questions)
        ]


def over_states(model: Model, work: Work, lengths: Sequence[int] = STATES) -> list[Point]:
    """The same questions on longer and longer states, each the beginning of the work's."""
    points = []
    for length in lengths:
        shorter = Work(work.state[:length], work.questions, work.labels)
        with Asked(model, work.labels) as engine:
            state, _ = engine.together([shorter.state])
            packed, _ = engine.together(shorter.prompts())
        points.append(Point(length, len(shorter.questions), state, packed))
    return points


def table(points: Sequence[Point]) -> str:
    """In Markdown; processor seconds in brackets."""
    lines = [
        "| state tokens | questions | state | questions | again to first | to one request each |",
        "|---|---|---|---|---|---|",
    ]
    single = points[0]
    for point in points:
        is_comparable = point.state_tokens == single.state_tokens and single.questions == 1
        saved = f"{to_single(point, single):.3f}" if is_comparable else ""
        lines.append(
            f"| {point.state_tokens} | {point.questions} | {point.state} | {point.packed} "
            f"| {point.packed.cpu / point.whole.cpu:.2f} | {saved} |"
        )
    return "\n".join(lines)


def to_single(many: Point, single: Point) -> float:
    """One request as a share of a request for each question, each reading the state itself."""
    return many.whole.cpu / (single.whole.cpu * many.questions)
