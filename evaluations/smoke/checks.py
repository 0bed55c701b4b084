"""The questions of the smoke test and what must be true of their answers.

Checks are of two kinds that must never be mixed up: *mechanics* fail when the service is broken,
*meaning* fails when the model behind a working service is too rough to trust.
"""

import math
import time
from collections.abc import Iterable, Iterator

import httpx

from evaluations.smoke.report import Check, Report
from evaluations.smoke.session import Json, Session, SmokeError, explain, json_body

_SUM_TOLERANCE = 1e-6
# Two runs of one question on a GPU in bfloat16 differ by a few hundredths at most.
_ISOLATION_TOLERANCE = 0.05

_MESSAGE = (
    "Hi, I was charged twice for my March invoice. Please refund the second payment today, "
    "my account is already overdrawn because of it."
)
_DEPARTMENTS = {
    "billing": "Invoices, charges, payments and refunds",
    "technical": "Errors, outages and broken features",
    "account": "Logins, passwords and profile changes",
}
_REFUND = {"type": "noul", "instructions": "Does the customer ask for money back?"}
_QUESTIONS: Json = {
    "refund": _REFUND,
    "password": {"type": "noul", "instructions": "Does the customer ask for a password reset?"},
    "department": {
        "type": "choice",
        "instructions": "Which department should handle this message?",
        "criteria": _DEPARTMENTS,
    },
    "department, other order": {
        "type": "choice",
        "instructions": "Which department should handle this message?",
        "criteria": dict(reversed(_DEPARTMENTS.items())),
    },
    "urgency": {
        "type": "score",
        "instructions": "How soon does the customer need a reaction?",
        "criteria": [
            "Not urgent: it can wait for weeks",
            "Normal: within some days",
            "Urgent: today",
        ],
    },
}
# fmt: off
_COLOURS = ["red", "green", "blue", "black"]
_ANIMALS = [
    "badger", "bear", "beaver", "bee", "buffalo", "butterfly", "camel", "cat", "chicken", "cow",
    "crab", "crocodile", "deer", "dog", "dolphin", "donkey", "duck", "eagle", "elephant", "falcon",
    "fish", "fox", "frog", "giraffe", "goat", "goose", "hamster", "hedgehog", "horse", "jellyfish",
    "kangaroo", "koala", "lion", "lizard", "monkey", "moose", "mouse", "octopus", "otter", "owl",
    "panda", "parrot", "peacock", "penguin", "pig", "pigeon", "polar bear", "rabbit", "rat",
    "raven", "reindeer", "seal", "shark", "sheep", "snail", "snake", "spider", "squirrel", "swan",
    "tiger", "turtle", "whale", "wolf", "zebra",
]
# fmt: on
_POSTER = "My daughter's favourite animal is the penguin. She has a poster of one above her bed."
_FAVOURITE = "penguin"


def checks(session: Session, report: Report) -> Iterator[Check]:
    """Ask everything, note the figures in `report`, and yield each check as it is decided.

    Raises:
        SmokeError: when an answer leaves nothing to go on with.
        httpx.HTTPError: when the connection breaks.
        KeyError, TypeError, AttributeError: when an answer is not of the contract's form.
    """
    first, report.latency_cold = _first_answer(session, report)
    second, report.latency_warm = session.timed(_MESSAGE, _QUESTIONS)
    if second.status_code != 200:
        raise SmokeError(f"The example, asked again, was answered {explain(second)}")
    _note_headers(second, report)
    body = json_body(second)
    report.model = second.headers.get("x-openjev-model") or str(body.get("model"))
    report.usage = dict(body.get("usage", {}))

    yield from _shape_checks(json_body(first), body)
    yield from _state_checks(session)
    yield _isolation_check(session, body)
    yield from _meaning_checks(body["answers"])
    yield from _limit_checks(session)


def _first_answer(session: Session, report: Report) -> tuple[httpx.Response, float]:
    started = time.monotonic()
    response, latency = session.patient(_MESSAGE, _QUESTIONS)
    report.wait = max(0.0, time.monotonic() - started - latency)
    health = session.get("/health")
    if health is not None:
        report.startup_seconds = health.get("startup_seconds")
    if response.status_code != 200:
        raise SmokeError(f"The example was answered {explain(response)}")
    return response, latency


def _shape_checks(first: Json, body: Json) -> Iterator[Check]:
    answers = body.get("answers", {})
    in_order = list(answers) == list(_QUESTIONS)
    yield _mechanics(
        "every question is answered, in order", in_order, len(answers) if in_order else [*answers]
    )
    types = [answer.get("type") for answer in answers.values()]
    wanted = [question["type"] for question in _QUESTIONS.values()]
    yield _mechanics("each answer has the type that was asked for", types == wanted, _listed(types))
    if types != wanted:
        raise SmokeError("The answers do not have the types that were asked for.")
    distributions = [a["probabilities"] for a in answers.values() if "probabilities" in a]
    error = max(abs(sum(shares.values()) - 1) for shares in distributions)
    yield _mechanics("probabilities sum to 1", error <= _SUM_TOLERANCE, f"off by {error:.1g}")
    inside = {id_: value for id_, value in _numbers(answers) if not 0 <= value <= 1}
    yield _mechanics("every probability lies in [0, 1]", not inside, inside or "all do")
    expected = sum(int(i) * p for i, p in answers["urgency"]["probabilities"].items())
    yield _mechanics(
        "a score is the expected level",
        math.isclose(answers["urgency"]["score"], expected, abs_tol=_SUM_TOLERANCE),
        f"{answers['urgency']['score']:.6f} and {expected:.6f}",
    )
    tokens = body.get("usage", {}).get("output_tokens")
    yield _mechanics(
        "usage counts one output token per question and one for the warm-up",
        tokens == len(_QUESTIONS) + 1,
        tokens,
    )
    same = _largest_move(first["answers"], answers)
    yield _mechanics(
        "the same request gives the same answers", same <= _ISOLATION_TOLERANCE, f"moved {same:.2g}"
    )


def _state_checks(session: Session) -> Iterator[Check]:
    chat = [{"role": "user", "content": _MESSAGE}, {"role": "assistant", "content": "One moment."}]
    for name, state in (("a chat", chat), ("JSON", {"message": _MESSAGE, "amount": "19 €"})):
        response, _ = session.timed(state, {"refund": _REFUND})
        yield _mechanics(
            f"{name} is accepted as state", response.status_code == 200, explain(response)
        )


def _isolation_check(session: Session, body: Json) -> Check:
    alone, _ = session.timed(_MESSAGE, {"renamed": _QUESTIONS["refund"]})
    if alone.status_code != 200:
        return _mechanics("a question can be asked alone", False, explain(alone))
    moved = abs(json_body(alone)["answers"]["renamed"]["noul"] - body["answers"]["refund"]["noul"])
    return _mechanics(
        "an answer does not depend on its id or on other questions",
        moved <= _ISOLATION_TOLERANCE,
        f"moved {moved:.2g}",
    )


def _meaning_checks(answers: Json) -> Iterator[Check]:
    refund, password = answers["refund"]["noul"], answers["password"]["noul"]
    yield _meaning("a plea for a refund is recognised", refund > 0.5, f"{refund:.2f}")
    yield _meaning("no password reset is asked for", password < 0.5, f"{password:.2f}")
    for id_ in ("department", "department, other order"):
        share = answers[id_]["probabilities"]["billing"]
        yield _meaning(f"{id_}: billing", answers[id_]["choice"] == "billing", f"{share:.2f}")
    score = answers["urgency"]["score"]
    yield _meaning("the urgency is nearest Urgent", score > 1.5, f"{score:.2f} of 2")


def _limit_checks(session: Session) -> Iterator[Check]:
    limit = (session.get("/v1/limits") or {}).get("max_answers", 64)
    accepted, _ = session.timed(_POSTER, {"favourite": _many_options(limit)})
    yield _mechanics(
        f"a question with {limit} answers is answered",
        accepted.status_code == 200,
        explain(accepted),
    )
    refused, _ = session.timed(_POSTER, {"favourite": _many_options(limit + 1)})
    yield _mechanics(
        f"{limit + 1} answers are refused, naming the limit",
        refused.status_code == 422 and str(limit) in refused.text,
        explain(refused),
    )
    if limit < len(_ANIMALS):
        return
    if limit > len(_ANIMALS):
        accepted, _ = session.timed(_POSTER, {"favourite": _many_options(len(_ANIMALS))})
    if accepted.status_code != 200:
        raise SmokeError(
            f"A question with {len(_ANIMALS)} answers was answered {explain(accepted)}"
        )
    answer = json_body(accepted)["answers"]["favourite"]
    yield _meaning(
        f"the right one of {len(_ANIMALS)} answers is found",
        answer["choice"] == _FAVOURITE,
        f"{answer['choice']}, {answer['probabilities'][_FAVOURITE]:.2f}",
    )


def _many_options(count: int) -> Json:
    """As many animals as wanted: the plain ones first, then coloured ones."""
    coloured = [f"{colour} {animal}" for colour in _COLOURS for animal in _ANIMALS]
    return {
        "type": "choice",
        "instructions": "Which animal does the girl like best?",
        "criteria": dict.fromkeys([*_ANIMALS, *coloured][:count]),
    }


def _note_headers(response: httpx.Response, report: Report) -> None:
    headers = response.headers
    report.prefix_tokens = _count(headers.get("x-openjev-prefix-tokens"))
    report.cached_tokens = _count(headers.get("x-openjev-cached-tokens"))
    for part in headers.get("server-timing", "").split(","):
        name, _, duration = part.strip().partition(";dur=")
        if duration:
            report.server_timing[name] = float(duration)


def _numbers(answers: Json) -> Iterator[tuple[str, float]]:
    for id_, answer in answers.items():
        yield from ((id_, value) for value in answer.get("probabilities", {}).values())
        yield from ((id_, answer[name]) for name in ("noul", "confidence") if name in answer)


def _largest_move(before: Json, after: Json) -> float:
    pairs = zip(_numbers(before), _numbers(after), strict=True)
    return max(abs(a - b) for (_, a), (_, b) in pairs)


def _listed(names: Iterable[object]) -> str:
    return ", ".join(sorted({str(name) for name in names}))


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _mechanics(name: str, passed: bool, found: object) -> Check:
    return Check(name, "mechanics", passed, str(found))


def _meaning(name: str, passed: bool, found: object) -> Check:
    return Check(name, "meaning", passed, str(found))
