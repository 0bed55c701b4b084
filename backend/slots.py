"""Places for a limited number of calls, given in the order in which they are asked for.

`asyncio.Semaphore` does the same, but makes a coroutine of taking a place that is free, which is
nearly every one. Belongs to one event loop; knows nothing of what is called.
"""

import asyncio
from collections import deque


class Slots:
    """Counts places.

    Args:
        number: of them.
    """

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting = deque[asyncio.Future[None]]()

    def take_at_once(self) -> bool:
        """Take a place if one is free, which it is only while nobody waits; tell whether it was."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        """Take a place, after all who have asked before."""
        if self.take_at_once():
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was given at the same moment
                self.give_back()
            raise

    def give_back(self) -> None:
        """Give the place to whoever has waited longest, if anybody does."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
