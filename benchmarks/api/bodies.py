"""The evaluations that the benchmarks post: the same questions about ever other states.

Made as they are asked for, by the process that puts the load, so they have to be cheap.
"""

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

Questions = Mapping[str, Mapping[str, Any]]

STATE_WORDS = 280
"""Of the usual state: about 300 tokens with what is said around it."""

_WORDS = (
    "invoice", "customer", "payment", "twice", "charged", "refund", "account", "support",
    "message", "urgent", "overdue", "delivery", "printer", "broken", "screen", "password",
    "reset", "login", "office", "monday", "manager", "reply",
)  # fmt: skip

FOUR_QUESTIONS: Questions = {
    "refund": {"type": "noul", "instructions": "Does the customer ask for money back?"},
    "angry": {"type": "noul", "instructions": "Is the customer angry?"},
    "department": {
        "type": "choice",
        "instructions": "Which department should handle this message?",
        "criteria": {
            "billing": "Invoices, charges, payments and refunds",
            "technical": "Errors, outages and broken features",
            "account": "Logins, passwords and profile changes",
        },
    },
    "urgency": {
        "type": "score",
        "instructions": "How soon does the customer need a reaction?",
        "criteria": ["It can wait for weeks", "Within some days", "Today"],
    },
}


def many_questions(count: int) -> Questions:
    """Make `count` questions that are all different, of the three types in turn."""
    kinds = ("refund", "department", "urgency")
    made = {}
    for number in range(count):
        question = FOUR_QUESTIONS[kinds[number % len(kinds)]]
        instructions = f"{question['instructions']} Think of case {number}."
        made[f"q{number}"] = {**question, "instructions": instructions}
    return made


def evaluations(
    questions: Questions = FOUR_QUESTIONS, *, words: int = STATE_WORDS, fresh: bool = False
) -> Iterator[bytes]:
    """Endless bodies, no two with the same state.

    Args:
        questions: of every one.
        words: of the state; each is about a token.
        fresh: ask one more question, which is asked but once.
    """
    number = 0
    while True:
        number += 1
        chosen = random.Random(number).choices(_WORDS, k=words)  # noqa: S311 - the same every time
        asked = dict(questions)
        if fresh:
            asked["fresh"] = {"type": "noul", "instructions": f"Is this about case {number}?"}
        state = f"Message {number}: {' '.join(chosen)}."
        yield json.dumps({"model": "jev-latest", "state": state, "questions": asked}).encode()
