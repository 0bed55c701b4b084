"""The same questions on the same state, asked in every way.

* alone: the whole prompt for every question, nothing cached (one is measured, for all);
* one by one: the state once, then each question on the cached prefix when the last is answered;
* packed: the state once, then all questions together, as the product does;
* again: the questions together, on the prefix that is still cached.
"""

from dataclasses import dataclass

from backend.embedded.model import Model
from benchmarks.embedded.asking import Asked, Work, difference
from benchmarks.embedded.taken import Taken


@dataclass(frozen=True, slots=True)
class Ways:
    """Times; those of questions on a cached state are means over the rounds.

    Attributes:
        questions: how many.
        state: reading the state, once.
        alone: one question with the state, nothing cached, once.
        in_turn: all questions one by one, on the cached state.
        packed: all questions together, on the cached state.
        again: a second request: the state, which is known, and the questions together.
        apart: largest difference of a label's probability between the ways.
    """

    questions: int
    state: Taken
    alone: Taken
    in_turn: Taken
    packed: Taken
    again: Taken
    apart: float

    @property
    def packing(self) -> float:
        """Packed questions as a share of the same ones one by one."""
        return self.packed.to(self.in_turn)

    @property
    def repeating(self) -> float:
        """A second request as a share of the first."""
        return self.again.to(self.state + self.packed)

    def __str__(self) -> str:
        """A table in Markdown; processor seconds in brackets."""
        return (
            "| each question alone | one by one | packed | asked again |\n|---|---|---|---|\n"
            f"| {self.alone * self.questions} | {self.state + self.in_turn} "
            f"| {self.state + self.packed} | {self.again} |\n\n"
            f"questions packed to one by one: {self.packing:.2f}; "
            f"second request to first: {self.repeating:.2f}; "
            f"probabilities differ by at most {self.apart:.1e}"
        )


def measure(model: Model, work: Work, rounds: int) -> Ways:
    """Ask in all ways, the questions on the cached state `rounds` times in turn."""
    prompts = work.prompts()
    with Asked(model, work.labels, cached=False) as engine:
        alone, uncached = engine.together(prompts[:1])
    in_turn, packed, again = Taken(), Taken(), Taken()
    with Asked(model, work.labels) as engine:
        state, _ = engine.together([work.state])
        for _ in range(rounds):
            taken, separate = engine.in_turn(prompts)
            in_turn += taken
            taken, together = engine.together(prompts)
            packed += taken
            again += engine.together([work.state])[0] + engine.together(prompts)[0]
    apart = max(difference(separate, together), difference(uncached, together[:1]))
    share = 1 / rounds
    return Ways(len(prompts), state, alone, in_turn * share, packed * share, again * share, apart)
