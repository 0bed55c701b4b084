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
    """

    what: str
    measured: float
    limit: float
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the figure is on the right side of its limit; one that is no number is not."""
        if self.at_least:
            return self.measured >= self.limit
        return self.measured <= self.limit

    def __str__(self) -> str:
        bound = "at least" if self.at_least else "at most"
        verdict = "met" if self.is_met else "MISSED"
        return f"{verdict:6}  {self.what}: {self.measured:.3g} ({bound} {self.limit:g})"


def settle(goals: Sequence[Goal]) -> None:
    """Print the goals; end the program with exit code 1 if one is missed."""
    print("\n".join(map(str, goals)), flush=True)
    if not all(goal.is_met for goal in goals):
        raise SystemExit(1)
