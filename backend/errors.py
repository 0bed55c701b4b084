"""What can go wrong between us and an engine.

    EngineError
    ├── EngineUnavailable     not reachable, or still starting: try again soon
    │   └── EngineBusy        it answers, but takes no more work at the moment
    ├── EngineTimeout         no answer within the deadline
    ├── EngineProtocolError   it answered, but not what was asked
    │   └── UnusableLogprobs  a whole answer without finite log-probabilities of our labels
    └── EngineRejected        it refused the request as such (a 4xx)
    SetupError                what was set up cannot work; waiting does not help
    ├── TokenizerError        the tokenizer cannot be loaded, or cannot be used with the model
    └── EngineMismatch        the engine is not one that this server is set up for

Messages are complete sentences and never hold token ids, prompt text or anything an engine said
verbatim (an engine's messages may carry file paths and the offending body). Those of a `SetupError`
are for whoever runs the server: they may name files and addresses.
"""


class EngineError(Exception):
    """Base of every failure of a call to the engine."""


class EngineUnavailable(EngineError):
    """The engine cannot be reached, is still starting, or takes no more work.

    Attributes:
        retry_after: seconds after which a new try makes sense.
    """

    def __init__(self, message: str, *, retry_after: int = 2) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineBusy(EngineUnavailable):
    """The engine answers that it takes no more work at the moment: it is there all the same."""


class EngineTimeout(EngineError):
    """The engine gave no answer before the deadline."""

    def __init__(self, message: str = "The engine gave no answer before the deadline.") -> None:
        super().__init__(message)


class EngineProtocolError(EngineError):
    """The engine's answer is not one that probabilities may be made from."""


class UnusableLogprobs(EngineProtocolError):
    """The engine's answer is whole, but lacks a finite log-probability for some label."""


class EngineRejected(EngineError):
    """The engine refused the request itself.

    Attributes:
        status: the HTTP status it refused with.
    """

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class SetupError(Exception):
    """Something was set up such that it cannot work; the message says what to change."""


class TokenizerError(SetupError):
    """The tokenizer cannot be loaded, or it cannot be used with the model it is meant for."""


class EngineMismatch(SetupError):
    """The engine answers, but it is not one that this server is set up for."""
