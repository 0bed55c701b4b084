"""An engine as the rest of the product sees it, and nothing of how it is reached."""

from collections.abc import Sequence
from typing import Protocol

from backend.description import EngineDescription
from backend.protocol import Call, LabelLogprobs


class Engine(Protocol):
    """What is asked of an engine: `backend.client` asks a real one, tests stand in for it.

    Deadlines are readings of the running loop's clock, in seconds.

    Attributes:
        vocabulary_size: token ids must be below it; `None` while unknown. An id outside the
            vocabulary kills SGLang, so set it as soon as the tokenizer is loaded.
    """

    vocabulary_size: int | None

    async def label_logprobs(
        self, calls: Sequence[Call], *, deadline: float, routing_key: str
    ) -> list[LabelLogprobs]:
        """Ask for the log-probabilities of all `calls` at once; the first to fail ends them all.

        Returns:
            One answer for each call, in their order.

        Raises:
            EngineError: in any case at the deadline; nobody else watches it.
        """
        ...

    async def describe(self, *, deadline: float) -> EngineDescription:
        """Ask the engine what it serves and can do."""
        ...

    async def tokenize(self, text: str, *, deadline: float) -> list[int] | None:
        """Give the engine's own tokens of `text`; `None` where it does not tell."""
        ...

    async def is_healthy(self, *, deadline: float) -> bool:
        """Whether the engine answers that it works; never raises."""
        ...

    async def aclose(self) -> None:
        """End what is under way and close the connections."""
        ...
