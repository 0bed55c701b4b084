"""What is let in: how many evaluations at once, and how many tokens each may cost.

Refuses before any engine call is made. The limits themselves are `backend.config`'s.
"""

from collections.abc import Sequence

from backend.serving.share import Share
from evaluations.exceptions import Fault, InvalidRequest, Overloaded
from evaluations.quoting import shortened

OUTPUT_TOKENS = 1
"""Every engine call makes one token, and the engine needs room for it."""


class Admission:
    """Counts the evaluations under way, in all processes of the API together.

    A context that holds one of the places while its block runs, any number of times at once; nobody
    waits for one.

    Args:
        max_concurrent: how many there may be.
        share: where they are counted.
    """

    def __init__(self, max_concurrent: int, share: Share) -> None:
        self._max_concurrent = max_concurrent
        self._share = share

    @property
    def running(self) -> int:
        """Evaluations at this moment."""
        return sum(self._share.running)

    def __enter__(self) -> None:
        """Take a place.

        Raises:
            Overloaded: all are taken.
        """
        self._share.running[self._share.index] += 1  # first: two must not both take the last place
        if self.running > self._max_concurrent:
            self.__exit__()
            raise Overloaded(
                f"{self._max_concurrent} evaluations are running, as many as this server takes at "
                "once. Try again in a second."
            )

    def __exit__(self, *failure: object) -> None:
        """Give the place back."""
        self._share.running[self._share.index] -= 1


def check_budgets(
    prefix_tokens: int,
    suffix_tokens: Sequence[int],
    question_ids: Sequence[str],
    *,
    max_input_tokens: int,
    max_total_input_tokens: int,
) -> None:
    """Check what the calls of an evaluation will cost.

    Args:
        prefix_tokens: the state with everything before the question.
        suffix_tokens: by question.
        question_ids: in the same order.
        max_input_tokens: prefix, suffix and output token of one branch.
        max_total_input_tokens: the warm-up (the prefix) and all branches.

    Raises:
        InvalidRequest: names every question that is over its budget.
    """
    if prefix_tokens + OUTPUT_TOKENS >= max_input_tokens:
        raise InvalidRequest([state_too_long(prefix_tokens, max_input_tokens)])
    faults = [
        question_too_long(
            question_id, prefix_tokens + tokens + OUTPUT_TOKENS, max_input_tokens, prefix_tokens
        )
        for question_id, tokens in zip(question_ids, suffix_tokens, strict=True)
        if prefix_tokens + tokens + OUTPUT_TOKENS > max_input_tokens
    ]
    total = prefix_tokens + sum(prefix_tokens + tokens for tokens in suffix_tokens)
    if total > max_total_input_tokens:
        message = (
            f"All questions together need {total} input tokens ({prefix_tokens} for the state, "
            f"read once in advance and once with each of {len(suffix_tokens)} questions); the "
            f"limit is {max_total_input_tokens}. Send fewer questions or a shorter state."
        )
        faults.append(Fault("too_many_tokens", ("questions",), message))
    if faults:
        raise InvalidRequest(faults)


def state_too_long(tokens: int, limit: int) -> Fault:
    """Say that the state leaves no room for a question.

    Args:
        tokens: counted so far; a text far over the limit is not counted to its end.
        limit: tokens of one branch.
    """
    message = (
        f"`state` needs {tokens} tokens or more, without any question; state and question "
        f"together may have {limit}. Shorten the state."
    )
    return Fault("too_many_tokens", ("state",), message)


def question_too_long(question_id: str, tokens: int, limit: int, prefix_tokens: int = 0) -> Fault:
    """Say that a question does not fit.

    Args:
        question_id: which one.
        tokens: what it needs, as far as it was counted.
        limit: tokens of one branch.
        prefix_tokens: how many of `tokens` are the state's.
    """
    share = f", {prefix_tokens} of them for the state" if prefix_tokens else " or more by itself"
    message = (
        f"Question {shortened(question_id)!r} needs {tokens} tokens{share}; state, question and "
        f"one token of output together may have {limit}. Shorten the question or the state."
    )
    return Fault("too_many_tokens", ("questions", question_id), message)
