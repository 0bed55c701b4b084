"""Whether a process still turns its loop, seen by another through memory that both share.

The one counts there, the other looks whether the count has changed. Silence is measured in looks,
not by the clock: while the watcher itself was stopped, or the machine slept, there was nothing to
see. Knows nothing of processes, nor of what silence leads to.
"""

import asyncio
from collections.abc import Callable, Coroutine, MutableSequence, Sequence
from typing import Any, TypeVar

_Result = TypeVar("_Result")

_LONGEST_PAUSE_SECONDS = 5.0
_LOOKS = 4  # at least, before silence counts: a beat may come a little late


def pause_for(seconds: float) -> float:
    """The time between two beats, and two looks, by which a silence of `seconds` is noticed."""
    return min(_LONGEST_PAUSE_SECONDS, seconds / _LOOKS)


async def beating(
    work: Coroutine[Any, Any, _Result], counts: MutableSequence[int], index: int, pause: float
) -> _Result:
    """Do `work`, and count while it lasts.

    Args:
        work: what to do.
        counts: one for each process.
        index: of this process' count.
        pause: seconds between two beats.

    Returns:
        What `work` returned.
    """
    heart = asyncio.create_task(_beat(counts, index, pause))
    try:
        return await work
    finally:
        heart.cancel()
        await asyncio.gather(heart, return_exceptions=True)


async def wait_for_silence(
    counts: Sequence[int], index: int, pause: float, limit: Callable[[], float]
) -> None:
    """Watch until a count has not changed for some time; for ever if need be.

    Args:
        counts: one for each process.
        index: of the watched process' count.
        pause: seconds between two looks.
        limit: how many seconds count as silence, at the moment.
    """
    seen, silent = counts[index], 0.0
    while silent < limit():
        await asyncio.sleep(pause)
        silent = silent + pause if counts[index] == seen else 0.0
        seen = counts[index]


async def _beat(counts: MutableSequence[int], index: int, pause: float) -> None:
    while True:
        counts[index] += 1
        await asyncio.sleep(pause)
