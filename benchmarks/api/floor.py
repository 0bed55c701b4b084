"""The least an ASGI server can do around the product's own core: no framework, no checks.

Parses with msgspec, calls `evaluations.service.evaluate` and writes the answer. What the product
takes more than this is the price of Django, validation, limits, ids and logs.
"""

import os
from typing import Any

import django
import msgspec

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "openjev_site.settings")
django.setup()

from evaluations.questions import (  # noqa: E402
    Answer,
    ChoiceAnswer,
    ChoiceQuestion,
    Evaluation,
    EvaluationRequest,
    NoulAnswer,
    NoulQuestion,
    Question,
    ScoreQuestion,
)
from evaluations.runtime import get_runtime  # noqa: E402


class Body(msgspec.Struct):  # type: ignore[misc] # its types are not looked at
    """The body, as the load sends it."""

    model: str
    state: str
    questions: dict[str, dict[str, Any]]


def _question(name: str, asked: dict[str, Any]) -> Question:
    if asked["type"] == "noul":
        return NoulQuestion(name, asked["instructions"])
    if asked["type"] == "choice":
        return ChoiceQuestion(name, asked["criteria"], asked["instructions"])
    return ScoreQuestion(name, tuple(asked["criteria"]), asked["instructions"])


def _answer(answer: Answer) -> dict[str, Any]:
    if isinstance(answer, NoulAnswer):
        return {"type": "noul", "noul": answer.noul}
    if isinstance(answer, ChoiceAnswer):
        return {
            "type": "choice",
            "choice": answer.choice,
            "confidence": answer.confidence,
            "probabilities": dict(answer.probabilities),
        }
    return {
        "type": "score",
        "score": answer.score,
        "confidence": answer.confidence,
        "legend": {str(index): level for index, level in enumerate(answer.legend)},
        "probabilities": {str(index): share for index, share in enumerate(answer.probabilities)},
    }


def _body(model: str, evaluation: Evaluation) -> dict[str, Any]:
    return {
        "model": model,
        "answers": {name: _answer(answer) for name, answer in evaluation.answers.items()},
        "usage": {
            "input_tokens": evaluation.input_tokens,
            "output_tokens": evaluation.output_tokens,
        },
    }


_decode = msgspec.json.Decoder(Body).decode
_encode = msgspec.json.Encoder().encode
_HEADERS = [(b"content-type", b"application/json")]


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Serve evaluations, and `/health` for the benchmark to wait for."""
    if scope["type"] == "lifespan":
        await receive()
        get_runtime().start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await get_runtime().stop()
        await send({"type": "lifespan.shutdown.complete"})
        return
    status, answer = 200, b"{}"
    if scope["path"] == "/health":
        status = 200 if await get_runtime().health() == "ok" else 503
    else:
        body, more = b"", True
        while more:
            event = await receive()
            body += event.get("body", b"")
            more = event.get("more_body", False)
        asked = _decode(body)
        questions = tuple(_question(*item) for item in asked.questions.items())
        evaluation = await get_runtime().evaluate(
            EvaluationRequest(asked.model, asked.state, questions)
        )
        answer = _encode(_body(asked.model, evaluation))
    length = (b"content-length", b"%d" % len(answer))
    await send({"type": "http.response.start", "status": status, "headers": [*_HEADERS, length]})
    await send({"type": "http.response.body", "body": answer})
