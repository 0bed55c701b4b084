"""Places for a limited number of calls, given in the order in which they are asked for.

A coroutine, as `asyncio.Semaphore` needs, would cost too much: nearly every place that is asked for
is free. Belongs to one event loop; knows nothing of what is called.
"""

from collections import OrderedDict
from collections.abc import Callable


class Slots:
    """Counts places.

    Args:
        number: of them.
    """

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting = OrderedDict[Callable[[], None], None]()  # in the order of asking

    def ask(self, begin: Callable[[], None]) -> None:
        """Take a place: call `begin` as soon as there is one, at once where one is free.

        Args:
            begin: has the place from then on, until `give_back`. It must not raise, and must be
                another object each time.
        """
        if not self._free:
            self._waiting[begin] = None
            return
        self._free -= 1
        begin()

    def withdraw(self, begin: Callable[[], None]) -> None:
        """Stop waiting for a place; nothing if it was given."""
        self._waiting.pop(begin, None)

    def give_back(self) -> None:
        """Give the place to whoever has waited longest, if anybody does."""
        if not self._waiting:
            self._free += 1
            return
        begin, _ = self._waiting.popitem(last=False)
        begin()
