"""Places for a limited number of calls, given in the order in which they are asked for.

Unlike `asyncio.Semaphore` it costs no coroutine to take a place that is free, which is nearly every
one. Belongs to one event loop; knows nothing of what is called.
"""

from collections.abc import Callable


class Slots:
    """Counts places.

    Args:
        number: of them.
    """

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: dict[Callable[[], None], None] = {}  # in the order of asking

    def ask(self, begin: Callable[[], None]) -> bool:
        """Take a place: call `begin` as soon as there is one.

        Returns:
            Whether that was at once, which it is only while nobody waits.
        """
        if not self._free:
            self._waiting[begin] = None
            return False
        self._free -= 1
        begin()
        return True

    def withdraw(self, begin: Callable[[], None]) -> None:
        """Stop waiting for a place; nothing if it was given."""
        self._waiting.pop(begin, None)

    def give_back(self) -> None:
        """Give the place to whoever has waited longest, if anybody does."""
        for begin in self._waiting:
            del self._waiting[begin]
            begin()
            return
        self._free += 1
