"""What can go wrong between us and an engine.

    EngineError
    ├── EngineUnavailable     not reachable, still starting, or its queue is full: try again soon
    ├── EngineTimeout         no answer within the deadline
    ├── EngineProtocolError   it answered, but not with finite log-probabilities for what we asked
    └── EngineRejected        it refused the request as such (a 4xx)
    TokenizerError            the tokenizer cannot be loaded or does not fit the engine

Messages are complete sentences and never hold token ids, prompt text or anything an engine said
verbatim (an engine's messages may carry file paths and the offending body).
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


class EngineTimeout(EngineError):
    """The engine gave no answer before the deadline."""


class EngineProtocolError(EngineError):
    """The engine's answer is not one that probabilities may be made from."""


class EngineRejected(EngineError):
    """The engine refused the request itself.

    Attributes:
        status: the HTTP status it refused with.
    """

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class TokenizerError(Exception):
    """The tokenizer cannot be loaded, or it does not fit the engine it is meant for."""
