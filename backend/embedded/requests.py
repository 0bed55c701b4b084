"""One prompt on its way through the engine: what is asked, what comes back, what can go wrong.

A request's future is its whole life: done means that nobody waits for it any more, because it was
answered, aborted, or its caller has gone. Anybody may settle it, once, from any thread.
"""

from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field


class QueueFull(Exception):
    """More requests wait than the queue may hold."""


class Aborted(Exception):
    """The request was abandoned on demand."""


class EngineFailed(Exception):
    """The computation broke down; the process is about to end."""

    def __init__(self) -> None:
        super().__init__("The engine failed.")


@dataclass(frozen=True, slots=True)
class Result:
    """What the model says about one prompt.

    Attributes:
        token: the most likely next token id.
        token_logprob: its log-probability, in nats.
        logprobs: those of the ids that were asked for, in that order, in nats.
        cached_tokens: prompt tokens that did not have to be read.
    """

    token: int
    token_logprob: float
    logprobs: tuple[float, ...]
    cached_tokens: int


@dataclass(eq=False, slots=True)
class Request:
    """One prompt in the queue.

    Attributes:
        rid: the caller's name for it.
        ids: the prompt, at least one token, all in the vocabulary.
        label_ids: ids whose log-probabilities are wanted, all in the vocabulary.
        future: where the result goes; cancelling it drops the request.
    """

    rid: str
    ids: tuple[int, ...]
    label_ids: tuple[int, ...]
    future: Future[Result] = field(default_factory=Future)


def abandoned(batch: Sequence[Request]) -> bool:
    """Whether nobody waits for any of them."""
    return not alive(batch)


def alive(batch: Sequence[Request]) -> list[Request]:
    """Those that somebody still waits for."""
    return [request for request in batch if not request.future.done()]


def fail(batch: Sequence[Request], error: Exception) -> None:
    """Give requests an error, unless they have an outcome."""
    for request in batch:
        settle(request, error)


def settle(request: Request, outcome: Result | Exception) -> None:
    """Give a request its outcome, unless it has one or its caller has gone."""
    try:
        if isinstance(outcome, Exception):
            request.future.set_exception(outcome)
        else:
            request.future.set_result(outcome)
    except InvalidStateError:
        return
