"""How CPU time grows with a size, and whether that is linear."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import correlation, linear_regression

from benchmarks.api.goals import Goal

_DEARER = 1.5  # what grows with the square comes to about 3; the rest is for noise


@dataclass(frozen=True, slots=True)
class Curve:
    """What one stack took at each size.

    Attributes:
        stack: its name.
        grows: what the sizes count.
        cpu: milliseconds of CPU per evaluation, by size.
    """

    stack: str
    grows: str
    cpu: Mapping[int, float]

    def line(self) -> tuple[float, float, float]:
        """The fitted line: milliseconds at size 0, milliseconds per unit, r squared."""
        sizes, spent = list(self.cpu), list(self.cpu.values())
        slope, intercept = linear_regression(sizes, spent)
        return intercept, slope, correlation(sizes, spent) ** 2

    def dearer(self) -> float:
        """Price of a unit from half of the largest size on, against that up to there."""
        half = max(self.cpu) / 2
        upper = {size: spent for size, spent in self.cpu.items() if size >= half}
        lower = {size: spent for size, spent in self.cpu.items() if size <= half}
        return _slope(upper) / _slope(lower)

    def goal(self) -> Goal:
        """It grows linearly, not worse."""
        what = f"{self.stack}: price of more {self.grows}, upper half to lower"
        return Goal(what, self.dearer(), _DEARER)

    def __str__(self) -> str:
        intercept, slope, fit = self.line()
        points = "  ".join(f"{size}: {spent:.2f}" for size, spent in self.cpu.items())
        return (
            f"{self.stack}, ms of CPU by {self.grows}:  {points}\n"
            f"    = {intercept:.2f} ms + {1000 * slope:.3g} µs each, r² {fit:.4f}; "
            f"upper half {self.dearer():.2f}x as dear as the lower"
        )


def _slope(points: Mapping[int, float]) -> float:
    return linear_regression(list(points), list(points.values())).slope
