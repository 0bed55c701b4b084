"""How far the start is, told to the person who waits for it.

A line at every new phase, and one now and then in a long phase, so that a slow start can be told
from one that is stuck. Decides nothing.
"""

import asyncio
from collections.abc import Callable

from backend.engine_log import Phase, phase_of, tells_taken_port

_REPEAT_SECONDS = 15.0
_ORDER = list(Phase)


class StartProgress:
    """Belongs to one start on one event loop, and counts from its making.

    Args:
        say: tells the person; one line.
        phase: what is done first.

    Attributes:
        phase: what is done now.
        port_is_taken: whether the engine has said that another server has its port.
    """

    def __init__(self, say: Callable[[str], None], phase: Phase) -> None:
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self.phase = phase
        self.port_is_taken = False
        self._news = asyncio.Event()

    @property
    def seconds(self) -> float:
        """Since the start began."""
        return self._loop.time() - self._began

    def has_reached(self, phase: Phase) -> bool:
        """Whether the start is in this phase, or beyond it."""
        return _ORDER.index(self.phase) >= _ORDER.index(phase)

    def heard(self, text: str) -> None:
        """Take note of a line of the engine's. Phases only go forward: several workers may tell."""
        # long before SGLang ends of it, which its last words do not mention
        self.port_is_taken = self.port_is_taken or tells_taken_port(text)
        phase = phase_of(text)
        if phase is not None and not self.has_reached(phase):
            self.phase = phase
            self._news.set()

    async def tell(self) -> None:
        """Tell until cancelled."""
        while True:
            self._news.clear()
            self._say(f"Start   {self.phase.value} ({self.seconds:.0f} s)")
            try:
                await asyncio.wait_for(self._news.wait(), _REPEAT_SECONDS)
            except TimeoutError:
                continue
