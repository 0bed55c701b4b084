"""Which representation a caller gets, decided at once for the callers that do not mind.

Programs ask for anything or for JSON; weighing media types against each other costs more than
reading their request. Everything else is Django REST framework's to weigh.
"""

from collections.abc import Iterable
from typing import Any

from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request

_JSON_WILL_DO = frozenset({"*/*", JSONRenderer.media_type})


class Negotiation(DefaultContentNegotiation):
    """Upstream's negotiation, with an answer ready for `*/*` and `application/json`."""

    def select_renderer(
        self,
        request: Request,
        renderers: Iterable[BaseRenderer],
        format_suffix: str | None = None,
    ) -> Any:
        """Choose a renderer and the media type of the response.

        Raises:
            NotAcceptable: the caller takes nothing that there is.
        """
        offered = list(renderers)
        first = offered[0]
        accepted = request._request.META.get("HTTP_ACCEPT", "*/*")
        if format_suffix is None and accepted in _JSON_WILL_DO and isinstance(first, JSONRenderer):
            return first, first.media_type
        return super().select_renderer(request, offered, format_suffix)
