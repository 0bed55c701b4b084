"""The table: what the caller of the API sees of each fault of the engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.openjev_site.exchange import Reply
from tests.support.fake_engine import Fault

REQUEST_SECONDS = 1.0
"""`OPENJEV_REQUEST_TIMEOUT` where an engine is silent; everything else must not need it."""
LATE_SECONDS = 2.0
"""How long after its deadline an answer may come on a busy machine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An error response.

    Attributes:
        status: of HTTP.
        type: of the error.
        retry_after: seconds in `Retry-After`; `None` where there is no such header.
        at_deadline: whether only the deadline ends the evaluation.
    """

    status: int
    type: str
    retry_after: int | None = None
    at_deadline: bool = False


NONSENSE = Outcome(502, "backend_error")
GONE = Outcome(503, "backend_unavailable", retry_after=2)
FULL = Outcome(503, "backend_unavailable", retry_after=1)
SILENT = Outcome(504, "timeout_error", at_deadline=True)

OUTCOMES: Mapping[Fault, Outcome] = {
    Fault.NAN: NONSENSE,
    Fault.INFINITE: NONSENSE,
    Fault.POSITIVE: NONSENSE,
    Fault.NULL: NONSENSE,
    Fault.TEXT: NONSENSE,
    Fault.SHORT: NONSENSE,
    Fault.OTHER_IDS: NONSENSE,
    Fault.MISSING: NONSENSE,
    Fault.WRONG_COUNT: NONSENSE,
    Fault.OTHER_CALL: NONSENSE,
    Fault.ABORTED: NONSENSE,
    Fault.ERROR_IN_200: NONSENSE,
    Fault.NOT_JSON: NONSENSE,
    Fault.LIST: NONSENSE,
    Fault.ENDLESS: NONSENSE,
    Fault.REDIRECT: NONSENSE,
    Fault.REFUSED: NONSENSE,
    Fault.TOO_LONG: NONSENSE,
    Fault.UNAUTHORISED: NONSENSE,
    Fault.NO_ROUTE: NONSENSE,
    Fault.CLIENT_GONE: NONSENSE,
    Fault.QUEUE_FULL: FULL,
    Fault.WAITED_TOO_LONG: GONE,
    Fault.NOT_READY: GONE,
    Fault.UPSTREAM: GONE,
    Fault.TRUNCATED: NONSENSE,
    Fault.CRASHED: NONSENSE,
    Fault.HANG: SILENT,
    Fault.STALL: SILENT,
    Fault.TRICKLE: SILENT,
    Fault.RESET: GONE,
    Fault.HALF: NONSENSE,
    Fault.NOT_HTTP: NONSENSE,
}
"""By what `/generate` does, in the warm-up or in a branch."""


def assert_outcome(reply: Reply, outcome: Outcome) -> None:
    """The reply is that error in the one shape, and tells nothing the engine said."""
    assert reply.complete
    assert_said(reply.status, reply.headers, reply.json, outcome)


def assert_said(
    status: int, headers: Mapping[str, str], body: Mapping[str, Any], outcome: Outcome
) -> None:
    """The same of a response in its parts; the names of `headers` are in lower case."""
    assert (status, body["error"]["type"]) == (outcome.status, outcome.type)
    message = body["error"]["message"]
    assert body["detail"] == {"error_type": outcome.type, "message": message}
    assert message[0].isupper()
    assert message.endswith(".")
    retry_after = None if outcome.retry_after is None else str(outcome.retry_after)
    assert headers.get("retry-after") == retry_after
    assert headers["x-request-id"].startswith("req_")
    assert_discreet(str(body))


def assert_discreet(text: str) -> None:
    """Nothing that a fault of the catalogue said, and no prompt, is in `text`."""
    for betrayal in ("secret", "10.0.0.7", "input_ids", "OpenSSH", "proxy", STATE, QUESTION):
        assert betrayal not in text


STATE = "The parcel arrived broken."
QUESTION = "Shall it be sent again"
BODY = {
    "model": "jev-latest",
    "state": STATE,
    "questions": {
        "again": {"type": "noul", "instructions": f"{QUESTION}?"},
        "team": {"type": "choice", "criteria": {"billing": "Money", "it": None, "hr": "People"}},
        "urgency": {"type": "score", "criteria": ["low", "high"]},
    },
}
BRANCHES = len(BODY["questions"])
"""After the warm-up, whose number is 0."""
