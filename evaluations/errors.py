"""The one shape of every error, and the only place that knows HTTP statuses.

    {"error": {"message": <sentence>, "type": <name>}, "detail": …}

`detail` is `{"error_type", "message"}`, or for a 422 the list of all faults. Exceptions of
`evaluations` and `backend` say what happened; this module says which response that is. A response
never holds a traceback, a path of this machine or the text of an unexpected exception.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import (
    BadRequest,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.http import Http404, HttpRequest, JsonResponse
from rest_framework import exceptions as drf
from rest_framework.response import Response

from backend import errors as engine
from evaluations import exceptions as refused
from evaluations.exceptions import Fault
from evaluations.quoting import shortened
from evaluations.request_log import request_id_of

logger = logging.getLogger(__name__)

MAX_FAULTS = 500
_NAMED_FAULTS = 3

_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "authentication_error",
    413: "request_too_large",
    422: "validation_error",
    500: "internal_error",
    502: "backend_error",
    503: "backend_unavailable",
    504: "timeout_error",
    529: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error response before it is rendered.

    Attributes:
        status: the HTTP status.
        message: a complete sentence for the caller.
        faults: what a 422 lists.
        headers: `Retry-After`, `Allow` or `WWW-Authenticate`.
    """

    status: int
    message: str
    faults: Sequence[Fault] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return error_body(self.status, self.message, self.faults)


def error_body(status: int, message: str, faults: Sequence[Fault] = ()) -> dict[str, Any]:
    """Build the JSON body of an error.

    Args:
        status: the HTTP status, which decides the error's type.
        message: a complete sentence.
        faults: what a 422 lists; at most `MAX_FAULTS` of them are shown.
    """
    name = _TYPES.get(status, "api_usage_error")
    detail: Any = {"error_type": name, "message": message}
    if faults:
        detail = [_fault_body(fault) for fault in faults[:MAX_FAULTS]]
    return {"error": {"message": message, "type": name}, "detail": detail}


def refusal_of(error: Exception, request: HttpRequest | Any) -> Refusal:
    """Decide which response an exception becomes; anything unforeseen is a 500 that says nothing.

    Args:
        error: what a view, a policy, a parser or Django raised.
        request: whose id and path the sentence may name.
    """
    match error:
        case refused.InvalidRequest():
            return Refusal(422, _summary(error.faults), error.faults)
        case refused.UnknownModel():
            return Refusal(400, str(error))
        case refused.Overloaded():
            return Refusal(529, str(error), headers=_retry_after(error.retry_after))
        case refused.NotReady() | engine.EngineUnavailable():
            return Refusal(503, str(error), headers=_retry_after(error.retry_after))
        case refused.DeadlineExceeded() | engine.EngineTimeout():
            return Refusal(504, str(error))
        case engine.EngineError():
            return Refusal(502, str(error))
        case Http404():
            return _not_found(request)
        case RequestDataTooBig():
            return Refusal(413, "The request body is larger than this server takes.")
        case SuspiciousOperation() | BadRequest():
            return Refusal(400, "The request is malformed.")
        case PermissionDenied():
            return Refusal(403, "Access is denied.")
        case drf.APIException():
            return _framework_refusal(error, request)
        case _:
            return _unforeseen(error, request)


def exception_handler(error: Exception, context: Mapping[str, Any]) -> Response:
    """Django REST framework's hook: every exception under a view ends here."""
    refusal = refusal_of(error, context["request"])
    return Response(refusal.body, status=refusal.status, headers=dict(refusal.headers))


def bad_request(request: HttpRequest, exception: Exception) -> JsonResponse:
    """Answer what Django refuses before a view is chosen (`handler400`)."""
    return _plain(refusal_of(exception, request))


def not_found(request: HttpRequest, exception: Exception) -> JsonResponse:
    """Answer a path that no route has (`handler404`)."""
    return _plain(refusal_of(exception, request))


def server_error(request: HttpRequest) -> JsonResponse:
    """Answer an exception outside of a view (`handler500`); Django has logged it."""
    return _plain(Refusal(500, internal_message(request_id_of(request))))


def internal_message(request_id: str) -> str:
    """Say that something failed which nobody foresaw; the cause is logged under the id."""
    return (
        f"The server failed unexpectedly. The request id {request_id} is in its log beside the "
        "cause."
    )


def _plain(refusal: Refusal) -> JsonResponse:
    return JsonResponse(
        refusal.body,
        status=refusal.status,
        headers=dict(refusal.headers),
        json_dumps_params={"ensure_ascii": False, "separators": (",", ":")},
    )


def _framework_refusal(error: drf.APIException, request: HttpRequest | Any) -> Refusal:
    headers: dict[str, str] = {}
    challenge = getattr(error, "auth_header", None)
    if challenge:
        headers["WWW-Authenticate"] = str(challenge)
    message = str(error.detail)
    if isinstance(error, drf.NotAcceptable):
        message = "This address answers in application/json, which the Accept header excludes."
    elif isinstance(error, drf.UnsupportedMediaType):
        message = (
            f"The content type {(request.content_type or '')[:80]!r} is not accepted. "
            "Send the body as JSON, with `Content-Type: application/json`."
        )
    elif isinstance(error, drf.MethodNotAllowed):
        message = f"{(request.method or '')[:20]} is not allowed at this address."
    return Refusal(error.status_code, message, headers=headers)


def _not_found(request: HttpRequest | Any) -> Refusal:
    path = request.path
    hint = " Addresses here have no slash at the end." if path.endswith("/") else ""
    return Refusal(404, f"There is nothing at {path[:200]!r}.{hint}")


def _unforeseen(error: Exception, request: HttpRequest | Any) -> Refusal:
    request_id = request_id_of(request)
    logger.error("%s failed with an unexpected exception.", request_id, exc_info=error)
    return Refusal(500, internal_message(request_id))


def _retry_after(seconds: int) -> dict[str, str]:
    return {"Retry-After": str(seconds)}


def _summary(faults: Sequence[Fault]) -> str:
    named = " ".join(fault.message for fault in faults[:_NAMED_FAULTS])
    more = len(faults) - _NAMED_FAULTS
    if more <= 0:
        return named
    return f"{named} There {'is' if more == 1 else 'are'} {more} more; `detail` lists them."


def _fault_body(fault: Fault) -> dict[str, Any]:
    body: dict[str, Any] = {
        "type": fault.type,
        "loc": ["body", *map(shortened, fault.loc)],
        "msg": fault.message,
    }
    if fault.input is not None:
        body["input"] = fault.input
    return body
