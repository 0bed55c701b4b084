"""Django REST framework's `APIView` with coroutine handlers.

Same order of events as upstream. The policies (authentication, negotiation) run on the event loop,
so none of them may block; JSON is rendered here, without a thread; only the browsable page is left
to Django, which renders it in one. Nothing in here knows what a view answers.
"""

import asyncio
import gc
import inspect
import logging
import time
from collections.abc import Mapping
from traceback import clear_frames
from typing import Any

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.renderers import BrowsableAPIRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from backend.fast_json import dumps
from evaluations.request_log import CLIENT_CLOSED_REQUEST, log_request

logger = logging.getLogger(__name__)

_METHODS: dict[type, list[str]] = {}


class AsyncAPIView(APIView):
    """An `APIView` whose handlers are coroutines (`options` may stay as it is).

    Attributes:
        log_level: of the line that each request leaves in the log.
    """

    log_level = logging.INFO

    async def dispatch(  # type: ignore[override] # upstream's is not a coroutine
        self, request: Any, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        """Run one request; a client that goes away cancels the handler, which is logged as 499."""
        started = time.perf_counter()
        self.args, self.kwargs = args, kwargs
        self.request = self.initialize_request(request, *args, **kwargs)
        try:
            response = await self._respond(self.request, *args, **kwargs)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                log_request(request, CLIENT_CLOSED_REQUEST, started, level=self.log_level)
            _empty_frames(error)
            self._let_go()
            raise
        self.headers = self.default_response_headers
        self.response = self.finalize_response(self.request, response, *args, **kwargs)  # type: ignore[arg-type] # the stubs know no plain HttpResponse here
        log_request(request, self.response.status_code, started, level=self.log_level)
        rendered = _rendered(self.response, self.request)
        rendered._resource_closers.append(self._let_go)  # type: ignore[attr-defined]
        return rendered

    @property
    def allowed_methods(self) -> list[str]:
        """The same for all requests, so it is found out once."""
        view = type(self)
        if view not in _METHODS:
            _METHODS[view] = super().allowed_methods
        return _METHODS[view]

    def perform_authentication(self, request: Request) -> None:
        """Let the authenticators look; there is no user for them to find."""
        request.user = None  # type: ignore[assignment] # else they are asked for one again, by a page
        for authenticator in request.authenticators or ():
            authenticator.authenticate(request)

    def answer(self, data: Any, headers: Mapping[str, str]) -> HttpResponseBase:
        """Answer with status 200: at once where plain JSON will do, else as upstream does."""
        if self.request.accepted_media_type != JSONRenderer.media_type:  # a page, or `; indent=4`
            return Response(data, headers=headers)
        content = dumps(data)
        entity = {"Content-Type": JSONRenderer.media_type, "Content-Length": str(len(content))}
        return HttpResponse(content, headers={**headers, **entity})

    def _let_go(self) -> None:
        """Undo what view, request and response have of each other.

        The request's body would stay in memory until the collector looks for such circles, which it
        seldom does. Those that are in a page nobody can undo.
        """
        has_page = False
        if isinstance(getattr(self, "response", None), Response):
            has_page = isinstance(self.response.accepted_renderer, BrowsableAPIRenderer)
            self.response.renderer_context.clear()  # type: ignore[attr-defined] # not in the stubs
        self.request.parser_context.clear()
        vars(self.request).clear()
        vars(self).clear()
        if has_page:
            gc.collect(0)

    async def _respond(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            self.initial(request, *args, **kwargs)
            name = (request.method or "").lower()
            handler = self.http_method_not_allowed
            if name in self.http_method_names:
                handler = getattr(self, name, handler)
            response = handler(request, *args, **kwargs)
            if inspect.isawaitable(response):
                response = await response
        except Exception as error:
            response = self.handle_exception(error)
            _empty_frames(error)
        return response


def _empty_frames(error: BaseException) -> None:
    """Undo what an error that has been dealt with holds: all variables of whatever it came through.

    Among them may be the error itself, as where one is kept before it is raised; see `_let_go`.
    Before Python 3.13 what still runs in such a place is ended, too: an error must be one request's
    own, together with those it followed from.
    """
    seen: BaseException | None = error
    while seen is not None:
        clear_frames(seen.__traceback__)
        seen = seen.__context__


def _rendered(response: HttpResponseBase, request: Request) -> HttpResponseBase:
    """Turn a JSON `Response` into plain bytes with a length; leave every other kind alone."""
    # log_response of Django would repeat, at a higher level, what was just logged
    response._has_been_logged = True  # type: ignore[attr-defined]
    if not isinstance(response, Response) or isinstance(
        response.accepted_renderer, BrowsableAPIRenderer
    ):
        return response
    content = response.rendered_content
    plain = HttpResponse(b"" if request.method == "HEAD" else content, status=response.status_code)
    plain.headers = response.headers
    plain["Content-Length"] = str(len(content))
    plain._has_been_logged = True  # type: ignore[attr-defined]
    return plain
