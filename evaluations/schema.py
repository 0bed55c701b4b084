"""How each route is described, and the OpenAPI document as a whole.

Everything structural comes from the serializers and `evaluations.schema_fields`; here are the
sentences, statuses, headers and examples. It needs no model, no engine and no network.
"""

import json
from functools import cache
from typing import Any

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
)

from evaluations import answers
from evaluations.errors import error_body
from evaluations.examples import example_request
from evaluations.exceptions import Fault
from evaluations.schema_fields import ErrorSerializer, RequestErrorSerializer
from evaluations.serializers import EvaluationSerializer

_ERRORS: dict[int, tuple[str, str]] = {
    400: ("The model is not served.", "The model 'gpt-9' is not served here."),
    401: (
        "The key is missing or wrong.",
        "The API key in the Authorization header is not valid.",
    ),
    413: (
        "The body is too large.",
        "The body is larger than the limit of 2097152 bytes, which also holds for its decompressed "
        "size. Send a shorter state or fewer questions.",
    ),
    415: (
        "The body is not JSON, or is encoded in an unknown way.",
        "The content type 'multipart/form-data' is not accepted. "
        "Send the body as JSON, with `Content-Type: application/json`.",
    ),
    502: ("The engine answered nonsense.", "The engine's answer broke off or is not HTTP."),
    503: (
        "The engine is starting or cannot be reached; see `Retry-After`.",
        "The model is still being loaded and checked. Try again in a few seconds.",
    ),
    504: (
        "The deadline passed.",
        "The evaluation took longer than 120 seconds. Send fewer questions or a shorter state, or "
        "try again when the server is less busy.",
    ),
    529: (
        "As many evaluations as allowed are running; see `Retry-After`.",
        "16 evaluations are running, as many as this server takes at once. Try again in a second.",
    ),
}
_FAULT = Fault(
    "too_few",
    ("questions", "urgency", "score", "criteria"),
    "Question 'urgency': `criteria` has 1 level; 2 to 64 are allowed.",
    "an array of 1 item",
)


def _error(status: int) -> OpenApiResponse:
    description, message = _ERRORS[status]
    example = OpenApiExample(
        str(status), error_body(status, message), response_only=True, status_codes=[str(status)]
    )
    return OpenApiResponse(ErrorSerializer, description=description, examples=[example])


def _invalid() -> OpenApiResponse:
    example = OpenApiExample(
        "422",
        error_body(422, _FAULT.message, [_FAULT]),
        response_only=True,
        status_codes=["422"],
    )
    return OpenApiResponse(
        RequestErrorSerializer,
        description="The request is not valid, or holds more tokens than allowed.",
        examples=[example],
    )


def _request_examples() -> list[OpenApiExample]:
    whole = example_request()
    examples = [OpenApiExample("all three types", whole, request_only=True)]
    for identity, question in whole["questions"].items():
        single = {**whole, "questions": {identity: question}}
        examples.append(OpenApiExample(question["type"], single, request_only=True))
    return examples


_ANSWER_EXAMPLE = OpenApiExample(
    "answers",
    {
        "model": "jev-latest",
        "answers": {
            "refund": {"type": "noul", "noul": 0.984375},
            "department": {
                "type": "choice",
                "choice": "billing",
                "confidence": 0.75,
                "probabilities": {"billing": 0.9375, "technical": 0.03125, "account": 0.03125},
            },
            "urgency": {
                "type": "score",
                "score": 1.875,
                "confidence": 0.625,
                "legend": {
                    "0": "Not urgent: it can wait for weeks",
                    "1": "Normal: within some days",
                    "2": "Urgent: today",
                },
                "probabilities": {"0": 0.03125, "1": 0.0625, "2": 0.90625},
            },
        },
        "usage": {"input_tokens": 812, "output_tokens": 4},
    },
    response_only=True,
)


def _header(name: str, description: str, kind: Any = OpenApiTypes.INT) -> OpenApiParameter:
    return OpenApiParameter(
        name, kind, OpenApiParameter.HEADER, response=[200], description=description
    )


_HEADERS = [
    OpenApiParameter(
        "x-typesafe-request-id",
        OpenApiTypes.STR,
        OpenApiParameter.HEADER,
        response=True,
        description="`req_` and 32 hexadecimal digits; also sent as `x-request-id`.",
    ),
    _header("x-openjev-model", "Public id of the model that answered.", OpenApiTypes.STR),
    _header("x-openjev-prefix-tokens", "Tokens of the state that all questions share."),
    _header(
        "x-openjev-cached-tokens",
        "Prompt tokens of all questions that came from the engine's cache; absent where the "
        "engine does not report them.",
    ),
    _header(
        "Server-Timing",
        "Milliseconds of the steps `prepare`, `prefill` and `branches`.",
        OpenApiTypes.STR,
    ),
]

evaluation = extend_schema(
    operation_id="evaluate",
    summary="Answer questions about a state",
    description=(
        "All questions are answered by one model that reads the state once. `noul` gives the "
        "probability of yes, `choice` a distribution over options, `score` one over ordered "
        "levels and the expected level. Numbers are not rounded."
    ),
    tags=["System One"],
    request={"application/json": EvaluationSerializer},
    responses={
        200: OpenApiResponse(answers.EvaluationResultSerializer, "The answers."),
        422: _invalid(),
        **{status: _error(status) for status in _ERRORS},
    },
    examples=[*_request_examples(), _ANSWER_EXAMPLE],
    parameters=_HEADERS,
)
models = extend_schema(
    operation_id="listModels",
    summary="List the models",
    tags=["Server"],
    responses={200: answers.ModelsSerializer, 401: _error(401)},
)
model = extend_schema(
    operation_id="getModel",
    summary="Describe a model",
    tags=["Server"],
    parameters=[
        OpenApiParameter("name", str, OpenApiParameter.PATH, description="It may hold a slash.")
    ],
    responses={
        200: answers.ModelEntrySerializer,
        401: _error(401),
        404: OpenApiResponse(ErrorSerializer, "There is no such model."),
    },
)
limits = extend_schema(
    operation_id="getLimits",
    summary="Report the limits in effect",
    tags=["Server"],
    responses={200: answers.LimitsSerializer, 401: _error(401)},
)
health = extend_schema(
    operation_id="getHealth",
    summary="Report whether evaluations can be answered",
    tags=["Server"],
    responses={
        200: answers.HealthSerializer,
        503: OpenApiResponse(answers.HealthSerializer, "They cannot be, now or yet."),
    },
)
liveness = extend_schema(
    operation_id="getLiveness",
    summary="Report that the process serves",
    tags=["Server"],
    responses={200: answers.LivenessSerializer},
)
undocumented = extend_schema(exclude=True)


@cache
def document() -> bytes:
    """Build the OpenAPI document as JSON; it hangs on the settings only, so once is enough."""
    return json.dumps(
        SchemaGenerator().get_schema(request=None, public=True), ensure_ascii=False
    ).encode()
