"""One progress display for all bytes of a download: a bar on a terminal, else a line per tenth."""

import sys
from types import TracebackType
from typing import Self

from tqdm import tqdm


class Progress:
    """Shows how many bytes are there; `show` may be called as often as one likes."""

    def __init__(self, name: str, total: int, *, enabled: bool) -> None:
        """Begin a display for `total` bytes, silent unless `enabled`."""
        self._name, self._total = name, total
        self._bar: tqdm | None = None  # type: ignore[type-arg]
        self._lines = enabled and not sys.stderr.isatty()
        self._tenth = 0
        if enabled and not self._lines:
            self._bar = tqdm(total=total, unit="B", unit_scale=True, desc=name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.leave = self._bar.n > 0  # one that never moved is only in the way
            self._bar.close()

    def show(self, done: int) -> None:
        """Say that `done` bytes of the total are there."""
        done = min(done, self._total)
        if self._bar is not None:
            self._bar.n = done
            self._bar.refresh()
        tenth = 10 * done // self._total
        if self._lines and tenth > self._tenth:
            megabytes = f"{done / 1e6:,.0f} of {self._total / 1e6:,.0f} MB"
            print(f"{self._name}: {10 * tenth} % ({megabytes})", file=sys.stderr, flush=True)
        self._tenth = max(tenth, self._tenth)
