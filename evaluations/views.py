"""The public routes: each view parses, makes one call and responds.

Validation, scoring and statuses live elsewhere, and so do the texts about the API
(`evaluations.schema`).
"""

import asyncio
import logging
from typing import Any

from django.conf import settings
from django.http import Http404, HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.exceptions import MethodNotAllowed, NotFound
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from evaluations import schema
from evaluations.answers import LimitsSerializer, evaluation_body, evaluation_headers
from evaluations.async_view import AsyncAPIView
from evaluations.catalogue import is_served, model_body, models_body
from evaluations.examples import example_request
from evaluations.page import EvaluationPageRenderer
from evaluations.parsers import PageFormParser, StrictJSONParser, parsed_body, received_body
from evaluations.questions import EvaluationRequest
from evaluations.runtime import get_runtime
from evaluations.serializers import read_evaluation

INLINE_BYTES = 65_536
"""A larger body is read in a thread; a smaller one takes the event loop about a millisecond."""


class SystemOneView(AsyncAPIView):
    """Post a state and typed questions about it; get answers with probabilities.

    In a browser this address shows a form with an example: edit it, post it, see the answer.
    """

    name = "System One"
    renderer_classes = (JSONRenderer, EvaluationPageRenderer)
    parser_classes = (StrictJSONParser, PageFormParser)

    @property
    def default_response_headers(self) -> dict[str, str]:
        """GET shows a page to browsers and is nothing to anyone else."""
        headers = super().default_response_headers
        return headers if _wants_page(self.request) else {**headers, "Allow": "POST, OPTIONS"}

    @schema.undocumented
    async def get(self, request: Request) -> Response:
        """Explain the route to a browser."""
        if not _wants_page(request):
            raise MethodNotAllowed(request.method or "GET")
        return Response({"documentation": "/docs", "example": example_request()})

    @schema.evaluation
    async def post(self, request: Request) -> HttpResponseBase:
        """Answer every question of one request."""
        asked = await _read(request)
        evaluation = await get_runtime().evaluate(asked)
        headers = evaluation_headers(settings.OPENJEV.served_model_name, evaluation)
        return self.answer(evaluation_body(asked.model, evaluation), headers)


class ModelsView(AsyncAPIView):
    """The names under which evaluations are served."""

    @schema.models
    async def get(self, request: Request) -> Response:
        """List them."""
        readout = get_runtime().readout
        return Response(models_body(settings.OPENJEV, readout.version if readout else None))


class ModelView(AsyncAPIView):
    """One name under which evaluations are served."""

    @schema.model
    async def get(self, request: Request, name: str) -> Response:
        """Describe it."""
        if not is_served(name, settings.OPENJEV):
            raise NotFound(f"There is no model {name[:200]!r} here; GET /v1/models lists them.")
        return Response(model_body(name))


class LimitsView(AsyncAPIView):
    """What this server admits."""

    @schema.limits
    async def get(self, request: Request) -> Response:
        """Report the effective limits."""
        return Response(LimitsSerializer(settings.OPENJEV).data)


class HealthView(AsyncAPIView):
    """Whether evaluations can be answered now; the engine is asked for real."""

    authentication_classes = ()
    log_level = logging.DEBUG  # probes come every few seconds and say nothing new

    @schema.health
    async def get(self, request: Request) -> Response:
        """Answer 200 when they can, 503 while they cannot."""
        runtime = get_runtime()
        status = await runtime.health()
        body = {"status": status, "startup_seconds": runtime.startup_seconds}
        return Response(body, status=200 if status == "ok" else 503)


class LivenessView(AsyncAPIView):
    """Whether the process serves; the engine is not asked."""

    authentication_classes = ()
    log_level = logging.DEBUG  # probes come every few seconds and say nothing new

    @schema.liveness
    async def get(self, request: Request) -> Response:
        """Answer 200."""
        return Response({"status": "ok"})


class OpenAPIView(AsyncAPIView):
    """The machine-readable description of this API."""

    authentication_classes = ()

    @schema.undocumented
    async def get(self, request: Request) -> HttpResponse:
        """Answer the document as JSON."""
        document = await asyncio.to_thread(schema.document)
        return HttpResponse(document, content_type="application/json")


@schema.undocumented
class UnknownRouteView(AsyncAPIView):
    """Any other address under `/v1/`: needs the key like everything there, then is a 404."""

    http_method_names: list[str] = []  # noqa: RUF012 - so declared upstream
    view_is_async = True  # Django finds this out from the handlers, of which there are none

    @property
    def default_response_headers(self) -> dict[str, str]:
        """There is nothing to allow a method on."""
        return {}

    async def http_method_not_allowed(  # type: ignore[override]
        self, request: Request, *args: Any, **kwargs: Any
    ) -> Response:
        """Answer 404 to every method."""
        raise Http404


def _wants_page(request: Request) -> bool:
    return isinstance(getattr(request, "accepted_renderer", None), EvaluationPageRenderer)


async def _read(request: Request) -> EvaluationRequest:
    body = received_body(request)
    if len(body) <= INLINE_BYTES:
        return read_evaluation(parsed_body(request, body))
    return await asyncio.to_thread(lambda: read_evaluation(parsed_body(request, body)))
