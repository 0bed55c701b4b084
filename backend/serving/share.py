"""What one process of the API may use of what is meant for all of them together.

How many evaluations run is counted in memory that they share: one counter each, written by its
process alone, so that nothing has to be locked and what a dead process counted can be taken back.
Engine calls, of which more wait their turn, are shared out. Knows nothing of processes.
"""

import mmap
import tempfile
from collections.abc import MutableSequence
from dataclasses import dataclass, field
from typing import IO, cast

_COUNTER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Share:
    """One process's; without arguments, that of a process which has everything to itself.

    Attributes:
        running: evaluations that run, by process.
        index: of this process.
    """

    running: MutableSequence[int] = field(default_factory=lambda: [0])
    index: int = 0

    def part_of(self, total: int) -> int:
        """How many of `total`, which are as many as there are processes or more, are this one's."""
        part, left = divmod(total, len(self.running))
        return part + (self.index < left)


def counters_file(processes: int) -> IO[bytes]:
    """A file without a name for the counters of `processes`, which are given its descriptor."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.truncate(_COUNTER_BYTES * processes)
    return file


def counters_in(file: int) -> MutableSequence[int]:
    """The counters in the file with the descriptor `file`, by process."""
    return cast("MutableSequence[int]", memoryview(mmap.mmap(file, 0)).cast("Q"))
