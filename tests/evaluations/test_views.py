"""The routes: what goes in, what comes out, and which methods and media types they know."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import AsyncClient, AsyncRequestFactory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluations import views
from evaluations.exceptions import NotReady
from tests.evaluations.conftest import Configure, Post
from tests.evaluations.stand_in import StandInRuntime

EXAMPLES = {
    path.name: path.read_bytes()
    for path in sorted(Path(django_settings.BASE_DIR, "examples").glob("*.json"))
}


REQUEST = {
    "model": "jev-7",
    "state": "Where is my parcel?",
    "questions": {
        "z": {"type": "score", "criteria": [{"l": 1}, "mid", ["h"]]},
        "배송": {"type": "choice", "criteria": {"나중": None, "b": "now", "a": ""}},
        "a": {"type": "noul", "instructions": "Is it late?"},
    },
}


async def test_answers_keep_order_types_and_full_precision(post: Post) -> None:
    response = await post(REQUEST)
    assert response.status_code == 200
    third = 1 / 3
    assert response.content.decode() == (
        '{"model":"jev-7","answers":{'
        '"z":{"type":"score","score":1.0,"confidence":0.0,'
        '"legend":{"0":{"l":1},"1":"mid","2":["h"]},'
        f'"probabilities":{{"0":{third},"1":{third},"2":{third}}}}},'
        '"배송":{"type":"choice","choice":"나중","confidence":0.0,'
        f'"probabilities":{{"나중":{third},"b":{third},"a":{third}}}}},'
        f'"a":{{"type":"noul","noul":{third}}}}},'
        '"usage":{"input_tokens":100,"output_tokens":4}}'
    )


async def test_json_is_indented_for_whoever_asks(api: AsyncClient) -> None:
    indented = {"Accept": "application/json; indent=2"}
    response = await api.post(
        "/v1/systemone", REQUEST, content_type="application/json", headers=indented
    )
    assert response.content.startswith(b'{\n  "model": "jev-7",\n  "answers": {\n')
    assert response["Content-Length"] == str(len(response.content))
    assert response["x-openjev-prefix-tokens"] == "40"


async def test_headers_tell_model_reuse_and_time(post: Post, runtime: StandInRuntime) -> None:
    response = await post(REQUEST)
    assert response["Content-Type"] == "application/json"
    assert response["Content-Length"] == str(len(response.content))
    assert response["x-openjev-model"] == django_settings.OPENJEV.served_model_name
    assert response["x-openjev-prefix-tokens"] == "40"
    assert response["x-openjev-cached-tokens"] == "7"
    assert response["Server-Timing"] == "prepare;dur=1.0, prefill;dur=20.0, branches;dur=300.0"


@pytest.mark.parametrize("cached", [None, 0])
async def test_cached_tokens_are_absent_only_where_unknown(
    post: Post, runtime: StandInRuntime, cached: int | None
) -> None:
    runtime.cached_tokens = cached
    response = await post(REQUEST)
    assert response.headers.get("x-openjev-cached-tokens") == (None if cached is None else "0")


@pytest.mark.parametrize("content", EXAMPLES.values(), ids=EXAMPLES.keys())
async def test_every_example_is_a_valid_request(post: Post, content: bytes) -> None:
    response = await post(content)
    assert response.status_code == 200
    assert response.json()["answers"].keys() == json.loads(content)["questions"].keys()


@pytest.mark.parametrize("length", [None, "", "0", "7, 7", "many"])
@pytest.mark.parametrize("size", [1, views.INLINE_BYTES + 1])
async def test_body_counts_as_received_whatever_length_is_declared(
    runtime: StandInRuntime, size: int, length: str | None
) -> None:
    content = json.dumps(REQUEST | {"state": "x" * size}).encode()
    request = AsyncRequestFactory().post(
        "/v1/systemone", content, content_type="application/json; charset=utf-8"
    )
    del request.META["CONTENT_LENGTH"]
    if length is not None:
        request.META["CONTENT_LENGTH"] = length
    view: Any = views.SystemOneView.as_view()
    response = await view(request)
    assert response.status_code == 200
    assert runtime.asked[-1].state == "x" * size


async def test_large_bad_body_is_refused_the_same_way(post: Post) -> None:
    response = await post(b"[" * (views.INLINE_BYTES + 1))
    assert response.status_code == 422
    assert response.json()["detail"][0]["type"] == "too_deep"


async def test_body_without_content_type_is_read_as_json(post: Post) -> None:
    assert (await post(REQUEST, content_type="")).status_code == 200


@pytest.mark.parametrize(
    "content_type",
    ["multipart/form-data; boundary=x", "text/plain", "application/x-www-form-urlencoded"],
)
async def test_other_content_types_are_refused(post: Post, content_type: str) -> None:
    response = await post(REQUEST, content_type=content_type)
    assert response.status_code == 415
    body = response.json()
    assert body["detail"]["error_type"] == "api_usage_error"
    assert "application/json" in body["error"]["message"]


async def test_json_get_of_the_post_route_is_a_405(api: AsyncClient) -> None:
    for method in ("get", "put", "delete", "patch", "trace"):
        response = await getattr(api, method)("/v1/systemone")
        assert response.status_code == 405
        assert response["Allow"] == "POST, OPTIONS"
        assert response.json()["detail"]["error_type"] == "api_usage_error"


async def test_unknown_method_is_a_405(api: AsyncClient) -> None:
    response = await api.generic("BREW", "/v1/limits")
    assert response.status_code == 405
    assert response["Allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/limits", "/health", "/health/live"])
async def test_head_says_what_get_would_without_the_body(api: AsyncClient, path: str) -> None:
    got, headed = await api.get(path), await api.head(path)
    assert (headed.status_code, headed.content) == (got.status_code, b"")
    assert headed["Content-Length"] == got["Content-Length"] == str(len(got.content))


async def test_options_describe_a_route(api: AsyncClient) -> None:
    response = await api.options("/v1/systemone")
    assert response.status_code == 200
    assert response["Allow"] == "POST, OPTIONS"
    assert "application/json" in response.json()["parses"]


async def test_accept_that_excludes_json_is_a_406(api: AsyncClient) -> None:
    response = await api.get("/v1/limits", headers={"Accept": "application/xml"})
    assert response.status_code == 406
    assert response["Content-Type"] == "application/json"
    assert response.json()["detail"]["error_type"] == "api_usage_error"


@pytest.mark.parametrize("method", ["get", "post", "options"])
@pytest.mark.parametrize("path", ["/v1/systemone/", "/v1/nope", "/v1/", "/nope", "/v1/models/"])
async def test_unknown_address_is_a_404_and_never_a_redirect(
    api: AsyncClient, path: str, method: str
) -> None:
    response = await getattr(api, method)(path)
    assert response.status_code == 404
    body = response.json()
    assert body["detail"] == {"error_type": "api_usage_error", "message": body["error"]["message"]}
    assert repr(path) in body["error"]["message"]
    assert "Allow" not in response.headers


async def test_models_are_listed_in_both_forms(api: AsyncClient, runtime: StandInRuntime) -> None:
    body = (await api.get("/v1/models")).json()
    names = ["jev-latest", django_settings.OPENJEV.served_model_name]
    assert [model["name"] for model in body["models"]] == names
    assert all(model["description"] and model["release_date"] for model in body["models"])
    assert all(model["x_readout_version"] == "0123456789ab" for model in body["models"])
    assert body["object"] == "list"
    assert [model["id"] for model in body["data"]] == names
    runtime.readout = None
    body = (await api.get("/v1/models")).json()
    assert all("x_readout_version" not in model for model in body["models"])


@pytest.mark.parametrize("name", ["jev-latest", "jev-2", django_settings.OPENJEV.served_model_name])
async def test_model_is_described_slash_included(api: AsyncClient, name: str) -> None:
    body = (await api.get(f"/v1/models/{name}")).json()
    assert body.keys() == {"id", "object", "created", "owned_by"}
    assert (body["id"], body["object"]) == (name, "model")


async def test_unknown_model_is_a_404(api: AsyncClient) -> None:
    response = await api.get("/v1/models/gpt/9")
    assert response.status_code == 404
    assert "'gpt/9'" in response.json()["error"]["message"]


async def test_limits_are_those_in_effect(api: AsyncClient, configure: Configure) -> None:
    configure(max_questions=3, max_answers=255, request_timeout=1.5)
    body = (await api.get("/v1/limits")).json()
    assert (body["max_questions"], body["max_answers"], body["request_timeout"]) == (3, 255, 1.5)
    assert body["max_body_bytes"] == django_settings.OPENJEV.max_body_bytes


@pytest.mark.parametrize(
    ("status", "seconds", "code"),
    [("ok", 1.5, 200), ("starting", None, 503), ("unavailable", 2, 503)],
)
async def test_health_says_whether_evaluations_are_answered(
    api: AsyncClient, runtime: StandInRuntime, status: Any, seconds: float | None, code: int
) -> None:
    runtime.status, runtime.startup_seconds = status, seconds
    response = await api.get("/health")
    assert response.status_code == code
    assert response.json() == {"status": status, "startup_seconds": seconds}
    assert (await api.get("/health/live")).json() == {"status": "ok"}


async def test_health_probes_leave_the_default_log_quiet(
    api: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        await api.get("/health")
        await api.get("/health/live")
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, logger="evaluations.request_log"):
        await api.get("/health")
    assert "GET '/health'" in caplog.text


async def test_request_leaves_one_line_without_its_content(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        response = await post(REQUEST, headers={"Authorization": "Bearer topsecret"})
    assert response.status_code == 200
    (record,) = [item for item in caplog.records if item.name == "evaluations.request_log"]
    line = record.getMessage()
    assert line.startswith("req_")
    assert "POST '/v1/systemone' 200" in line
    for secret in ("parcel", "late", "topsecret"):
        assert secret not in caplog.text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)
NEARLY_QUESTIONS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["noul", "choice", "score", "box"]) | VALUES,
        "instructions": VALUES,
        "criteria": VALUES
        | st.dictionaries(st.sampled_from(["true", "false", "a", ""]), VALUES, max_size=4)
        | st.lists(st.text(max_size=3), max_size=4),
    },
)
NEARLY_REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "model": st.just("jev-latest") | VALUES,
        "state": VALUES
        | st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "system"]) | VALUES},
                optional={"content": VALUES, "tool_calls": VALUES},
            ),
            max_size=3,
        ),
        "questions": st.dictionaries(st.text(max_size=4), NEARLY_QUESTIONS | VALUES, max_size=3)
        | VALUES,
        "assets": VALUES,
    },
)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.one_of(
        st.binary(max_size=40),
        VALUES.map(lambda value: json.dumps(value).encode()),
        NEARLY_REQUESTS.map(lambda value: json.dumps(value).encode()),
    )
)
async def test_no_body_makes_the_server_fail(post: Post, content: bytes) -> None:
    response = await post(content)
    assert response.status_code in {200, 422}
    body = response.json()
    if response.status_code == 200:
        assert body["answers"].keys() == json.loads(content)["questions"].keys()
    else:
        assert body["error"].keys() == {"message", "type"}
        assert body["detail"]
        assert all(
            fault["loc"][0] == "body" and fault["type"] and fault["msg"].endswith(".")
            for fault in body["detail"]
        )


async def test_failure_of_the_runtime_reaches_the_caller(
    post: Post, runtime: StandInRuntime
) -> None:
    runtime.failure = NotReady("The model is still being loaded.")
    response = await post(REQUEST)
    assert (response.status_code, response["Retry-After"]) == (503, "2")
    assert response.json()["error"]["message"] == "The model is still being loaded."
