"""What a benchmark has to show, told beside what it showed."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure and its limit.

    Attributes:
        what: is measured, with its unit.
        measured: the figure.
        limit: that it has to reach, or not to exceed.
        at_least: whether more is better.
        applies: whether the limit is one for what was measured; else it is told and not judged.
    """

    what: str
    measured: float
    limit: float
    at_least: bool = False
    applies: bool = True

    @property
    def is_missed(self) -> bool:
        """Whether it applies and is not met."""
        return self.applies and not self.is_met

    @property
    def is_met(self) -> bool:
        """Whether the figure is on the right side of its limit; one that is no number is not."""
        if self.at_least:
            return self.measured >= self.limit
        return self.measured <= self.limit

    def __str__(self) -> str:
        bound = "at least" if self.at_least else "at most"
        verdict = "MISSED" if self.is_missed else "met" if self.applies else "not judged"
        return f"{verdict:6}  {self.what}: {self.measured:.3g} ({bound} {self.limit:g})"


def settle(goals: Sequence[Goal]) -> None:
    """Print the goals; end the program with exit code 1 if one that applies is missed."""
    print("\n".join(map(str, goals)), flush=True)
    if any(goal.is_missed for goal in goals):
        raise SystemExit(1)
