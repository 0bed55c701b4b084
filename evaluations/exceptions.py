"""Why a request gets no answer.

    EvaluationError
    ├── InvalidRequest     the request breaks the contract or a limit; lists every fault
    ├── UnknownModel       it asks for a model that is not served
    ├── Overloaded         as many evaluations as allowed are running
    ├── NotReady           the engine or the readout is not ready (yet)
    └── DeadlineExceeded   the evaluation took longer than it may

Failures of the engine itself are `backend.errors.EngineError`. Only `evaluations.errors` knows
which HTTP status any of these becomes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request.

    Attributes:
        type: short machine-readable name, such as `missing` or `too_many_tokens`.
        loc: path into the body, without the leading `body`.
        message: a complete sentence naming the field, the limit and what was found.
        input: a short form of the offending value; `None` leaves it out.
    """

    type: str
    loc: tuple[str | int, ...]
    message: str
    input: Any = None


class EvaluationError(Exception):
    """Base of every reason for which an evaluation is refused or given up."""


class InvalidRequest(EvaluationError):
    """The request breaks the contract or a limit; `faults` lists everything found."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(faults[0].message)
        self.faults = tuple(faults)


class UnknownModel(EvaluationError):
    """The request asks for a model that is not served here."""


class Overloaded(EvaluationError):
    """As many evaluations as allowed are already running.

    Attributes:
        retry_after: seconds after which a new try makes sense.
    """

    retry_after = 1


class NotReady(EvaluationError):
    """There is no engine, or no verified readout, to answer with.

    Attributes:
        retry_after: seconds after which a new try makes sense.
    """

    retry_after = 2


class DeadlineExceeded(EvaluationError):
    """The evaluation did not finish within its time."""
