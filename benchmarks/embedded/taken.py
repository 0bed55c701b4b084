"""How long something took, on the clock and on the processor."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeVar

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Taken:
    """Time spent.

    Attributes:
        seconds: on the clock.
        cpu: seconds of processor time of this process, all threads together. Other programs on
            the machine hardly change it.
    """

    seconds: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: Self) -> "Taken":
        """One after the other."""
        return Taken(self.seconds + other.seconds, self.cpu + other.cpu)

    def __mul__(self, times: float) -> "Taken":
        """The same several times."""
        return Taken(self.seconds * times, self.cpu * times)

    def to(self, other: Self) -> float:
        """As a share of another, by the clock."""
        return self.seconds / other.seconds

    def __str__(self) -> str:
        """For a cell of a table."""
        return f"{self.seconds:.2f} s ({self.cpu:.2f})"


def timed(work: Callable[[], Outcome]) -> tuple[Taken, Outcome]:
    """Do it, and give the time with the outcome."""
    begin, cpu = time.perf_counter(), time.process_time()
    outcome = work()
    return Taken(time.perf_counter() - begin, time.process_time() - cpu), outcome
