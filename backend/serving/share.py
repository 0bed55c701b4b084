"""What one process of the API may use of what is meant for all of them together.

How many evaluations run is counted in memory that they share: one counter each, written by its
process alone, so that nothing has to be locked and what a dead process counted can be taken back.
Engine calls, of which more wait their turn, are shared out. By a second counter a process shows
that its loop turns (see `heartbeat`). Knows nothing of processes.
"""

import mmap
import tempfile
from collections.abc import MutableSequence
from dataclasses import dataclass, field
from typing import IO, NamedTuple, cast

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


class Counters(NamedTuple):
    """Those of all processes, by process.

    Attributes:
        running: evaluations that run.
        beats: grows while the loop turns.
    """

    running: MutableSequence[int]
    beats: MutableSequence[int]


def counters_file(processes: int) -> IO[bytes]:
    """A file without a name for the counters of `processes`, which are given its descriptor.

    Raises:
        OSError: there is no place for it.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        # written, not only made as long: on a full disk the first count would be a process's death
        file.write(bytes(len(Counters._fields) * _COUNTER_BYTES * processes))
        file.flush()
    except OSError:
        file.close()
        raise
    return file


def counters_in(file: int) -> Counters:
    """The counters in the file with the descriptor `file`."""
    counters = memoryview(mmap.mmap(file, 0)).cast("Q")
    processes = len(counters) // len(Counters._fields)
    running, beats = counters[:processes], counters[processes:]
    return Counters(cast("MutableSequence[int]", running), cast("MutableSequence[int]", beats))
