"""Django's ASGI handler without its threads.

The stock handler visits a thread twice per request (to send signals whose receivers look after
databases, to close the response) and once more to log an error: about half a millisecond of CPU
for nothing here, where no receiver blocks. This one does the same in the same order on the event
loop, in the task that it is called in. A synchronous view still runs in a thread.

It leans on internals of Django 5.2 (`_middleware_chain`, `run_get_response`, `resolve_request`,
`send_response`); its tests compare it with the stock handler.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any

from django import db
from django.conf import settings
from django.core import signals
from django.core.cache import close_caches
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, ASGIRequest, get_script_prefix
from django.core.handlers.base import reset_urlconf
from django.http import JsonResponse
from django.http.response import HttpResponseBase
from django.urls import ResolverMatch, get_resolver, set_script_prefix
from django.utils.log import log_response

from evaluations.errors import error_body

UNWATCHED_SECONDS = 0.25
"""For so long nobody looks whether the client of a request has left: most are answered by then, and
to look takes a task of its own."""

_MAX_REMEMBERED_PATH = 256
"""Characters. Any address may be one of a model, and as long as the server takes."""

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


if not settings.DATABASES:
    # they look after connections to databases and caches, of which there are none
    signals.request_started.disconnect(db.reset_queries)
    signals.request_started.disconnect(db.close_old_connections)
    signals.request_finished.disconnect(db.close_old_connections)
    signals.request_finished.disconnect(close_caches)

signals.request_finished.disconnect(reset_urlconf)  # there is one set of addresses, see below


class Handler(ASGIHandler):
    """Serves HTTP requests whose bodies were bounded before."""

    chunk_size = 2**30  # a JSON body leaves in one message, whatever its length

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; synchronous views take turns in one thread, not in one each."""
        await self.handle(scope, receive, send)

    async def read_body(self, receive: Receive) -> BytesIO:
        """Take in a body that is in memory already; upstream's goes through a temporary file.

        Raises:
            RequestAborted: the client left before it was complete.
        """
        body = BytesIO()
        more = True
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise RequestAborted
            body.write(event.get("body", b""))
            more = event.get("more_body", False)
        body.seek(0)
        return body

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; a client that leaves cancels a view that is not done soon."""
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        with body:
            if prefix := get_script_prefix(scope):
                set_script_prefix(prefix)
            signals.request_started.send(sender=self.__class__, scope=scope)
            request, refused = self.create_request(scope, body)
            if refused is not None:
                await self.send_response(_with_length(refused), send)
                refused.close()
                return
            stay = _Stay(receive)
            try:
                await self._answer(request, send)
            except asyncio.CancelledError:
                if stay.is_cut_short():
                    raise
            finally:
                stay.over()

    async def get_response_async(self, request: Any) -> Any:
        """Run middleware and view; log an error response unless the view did."""
        response = await self._middleware_chain(request)  # type: ignore[attr-defined]
        response._resource_closers.append(request.close)
        if response.status_code >= 400:
            reason, path = response.reason_phrase, request.path
            log_response("%s: %s", reason, path, response=response, request=request)
        return response

    def resolve_request(self, request: Any) -> ResolverMatch:
        """Find the view of an address; those that come again are remembered, unless they are long.

        There is one set of addresses: unlike upstream, none is set for the time of a request.
        """
        path = request.path_info
        find = _resolve if len(path) <= _MAX_REMEMBERED_PATH else _resolve.__wrapped__
        request.resolver_match = match = find(settings.ROOT_URLCONF, path)
        return match

    def create_request(
        self, scope: Scope, body_file: Any
    ) -> tuple[ASGIRequest, None] | tuple[None, HttpResponseBase]:
        """Make the request, or the refusal of one whose query is not text."""
        request, _ = super().create_request(scope, body_file)
        if request is not None:
            return request, None
        message = "The query string of the address is not valid UTF-8."
        return None, JsonResponse(error_body(400, message), status=400)

    async def _answer(self, request: Any, send: Send) -> None:
        try:
            response: Any = await self.run_get_response(request)
        except asyncio.CancelledError:
            signals.request_finished.send(sender=self.__class__)
            raise
        try:
            await self.send_response(_with_length(response), send)
        finally:
            response.close()  # sends request_finished


@lru_cache(maxsize=64)
def _resolve(urlconf: str, path: str) -> ResolverMatch:
    return get_resolver(urlconf).resolve(path)


def _with_length(response: Any) -> Any:
    """Spare the client a chunked body where the length is known."""
    bodiless = response.status_code in {204, 304}
    if not response.streaming and not bodiless and "Content-Length" not in response:
        response["Content-Length"] = str(len(response.content))
    return response


class _Stay:
    """A client's, while its request is answered; when it has left, the current task is cancelled.

    Cheaper than a task for the answer and one for the client, and then a wait for either. Where the
    answer comes within `UNWATCHED_SECONDS` there is no second task at all.
    """

    def __init__(self, receive: Receive) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - only a coroutine of a task makes one
        self._task = task
        self._has_left = False
        self._listening: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._waiting = loop.call_later(UNWATCHED_SECONDS, self._begin, receive)

    def is_cut_short(self) -> bool:
        """Whether somebody else has cancelled the task."""
        if self._has_left:
            self._task.uncancel()
        return self._task.cancelling() > 0

    def over(self) -> None:
        """Stop listening."""
        self._waiting.cancel()
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None  # which leads back here, and to the request's body

    def _begin(self, receive: Receive) -> None:
        self._listening = asyncio.create_task(self._listen(receive))

    async def _listen(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._has_left = True
        self._task.cancel()
