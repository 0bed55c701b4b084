"""Every way to fail has one status, one shape, and says nothing it should not."""

import json
import logging
from typing import Any

import pytest
from django.core.exceptions import (
    BadRequest,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.http import Http404
from django.test import AsyncClient, RequestFactory
from rest_framework import exceptions as drf

from backend import errors as engine
from evaluations import errors
from evaluations import exceptions as refused
from evaluations.exceptions import Fault
from tests.evaluations.conftest import Post
from tests.evaluations.stand_in import StandInRuntime

REQUEST = {
    "model": "jev-latest",
    "state": "s",
    "questions": {"q": {"type": "noul", "instructions": "i"}},
}
FAULT = Fault("too_many_tokens", ("state",), "The state is too long.", "x")


@pytest.mark.parametrize(
    ("failure", "status", "kind", "retry_after"),
    [
        (refused.UnknownModel("No such model."), 400, "api_usage_error", None),
        (refused.Overloaded("Too busy."), 529, "overloaded_error", "1"),
        (refused.NotReady("Not yet."), 503, "backend_unavailable", "2"),
        (refused.DeadlineExceeded("Too late."), 504, "timeout_error", None),
        (engine.EngineUnavailable("Away.", retry_after=4), 503, "backend_unavailable", "4"),
        (engine.EngineTimeout("Too slow."), 504, "timeout_error", None),
        (engine.EngineProtocolError("Nonsense."), 502, "backend_error", None),
        (engine.EngineRejected("Refused.", status=400), 502, "backend_error", None),
        (RequestDataTooBig("x"), 413, "request_too_large", None),
        (SuspiciousOperation("x"), 400, "api_usage_error", None),
        (BadRequest("x"), 400, "api_usage_error", None),
        (PermissionDenied("x"), 403, "authentication_error", None),
        (drf.Throttled(), 429, "api_usage_error", None),
    ],
)
async def test_failure_becomes_its_status(
    post: Post,
    runtime: StandInRuntime,
    failure: Exception,
    status: int,
    kind: str,
    retry_after: str | None,
) -> None:
    runtime.failure = failure
    response = await post(REQUEST)
    assert response.status_code == status
    assert response.headers.get("Retry-After") == retry_after
    body = response.json()
    assert body["error"]["type"] == kind
    assert body["detail"] == {"error_type": kind, "message": body["error"]["message"]}
    assert len(body["error"]["message"]) > 2


async def test_faults_found_by_the_runtime_become_a_422(
    post: Post, runtime: StandInRuntime
) -> None:
    runtime.failure = refused.InvalidRequest([FAULT])
    response = await post(REQUEST)
    assert response.status_code == 422
    assert response.json() == {
        "error": {"message": "The state is too long.", "type": "validation_error"},
        "detail": [
            {
                "type": "too_many_tokens",
                "loc": ["body", "state"],
                "msg": "The state is too long.",
                "input": "x",
            }
        ],
    }


@pytest.mark.parametrize(("count", "tail"), [(3, "."), (4, " is 1 more;"), (9, " are 6 more;")])
def test_message_of_many_faults_names_the_first_and_counts_the_rest(count: int, tail: str) -> None:
    request = RequestFactory().get("/")
    refusal = errors.refusal_of(refused.InvalidRequest([FAULT] * count), request)
    assert refusal.message.startswith("The state is too long. The state is too long.")
    assert tail in refusal.message
    assert len(refusal.body["detail"]) == count


def test_what_a_caller_sent_is_repeated_only_in_short() -> None:
    fault = Fault("empty", ("questions", "x" * 1000, 3), "It is empty.")
    (shown,) = errors.error_body(422, "Bad.", [fault])["detail"]
    assert shown["loc"] == ["body", "questions", "x" * 80 + "…", 3]


def test_number_of_faults_shown_is_bounded() -> None:
    body = errors.error_body(422, "Many.", [FAULT] * 10_000)
    assert len(body["detail"]) == errors.MAX_FAULTS


async def test_unforeseen_failure_is_logged_under_the_id_that_the_caller_sees(
    post: Post, runtime: StandInRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    runtime.failure = KeyError("topsecret")
    with caplog.at_level(logging.INFO):
        response = await post(REQUEST)
    assert response.status_code == 500
    message = response.json()["error"]["message"]
    assert "topsecret" not in response.content.decode()
    (request_id,) = [word for word in message.split() if word.startswith("req_")]
    (failure, line) = caplog.records
    assert request_id in failure.getMessage()
    assert failure.exc_info
    assert request_id in line.getMessage()


def test_handlers_of_the_site_use_the_same_shape() -> None:
    request = RequestFactory().get("/a%20place")
    for response, status in (
        (errors.not_found(request, Http404()), 404),
        (errors.bad_request(request, SuspiciousOperation("hidden")), 400),
        (errors.server_error(request), 500),
    ):
        assert response.status_code == status
        body: Any = json.loads(response.content)
        assert body["detail"]["message"] == body["error"]["message"]
        assert "hidden" not in body["error"]["message"]


async def test_path_with_undecodable_bytes_is_a_plain_404(api: AsyncClient) -> None:
    response = await api.get("/%ff%ed%a0%80")
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "api_usage_error"
