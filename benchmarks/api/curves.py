"""How CPU time grows with a size, and whether that is linear."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import correlation, linear_regression

from benchmarks.api.goals import Goal

_DEARER = 1.3  # more than 1 only for the noise of a machine that does other things as well


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
        """Price of a unit from half of the largest size on, against that below it."""
        smallest, *_, half, largest = self.cpu
        upper = (self.cpu[largest] - self.cpu[half]) / (largest - half)
        return upper / ((self.cpu[half] - self.cpu[smallest]) / (half - smallest))

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
