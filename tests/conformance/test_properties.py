"""Whatever is sent over the wire: an answer as the document promises it, or a sentence in JSON."""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.conformance.strategies import garbled_chats, valid_requests, values
from tests.support.served import Served

pytestmark = [pytest.mark.conformance, pytest.mark.process]

HANGS_AFTER = 30.0
bounded = settings(max_examples=80, deadline=None, derandomize=True, database=None)

ROUTE = "/v1/systemone"
ASK = {
    "model": "jev-latest",
    "state": "It rains.",
    "questions": {"q": {"type": "noul", "instructions": "Does it?"}},
}


@dataclass(frozen=True, repr=False)
class Api:
    """The product over the wire, and what its own document says about evaluations."""

    client: httpx.Client
    document: dict[str, Any]

    def check(self, instance: Any, *path: str) -> None:
        """Validate against the JSON schema at `path` of the description of the evaluation."""
        steps = ["paths", ROUTE, "post", *path, "content", "application/json", "schema"]
        pointer = "/".join(step.replace("~", "~0").replace("/", "~1") for step in steps)
        schema = {"$ref": f"#/{pointer}", **self.document}
        Draft202012Validator(schema).validate(instance)


@pytest.fixture(scope="module")
def api(default_product: Served) -> Iterator[Api]:
    with httpx.Client(base_url=default_product.url, timeout=HANGS_AFTER) as client:
        yield Api(client, client.get("/openapi.json").json())


@bounded
@given(valid_requests)
def test_every_valid_request_gets_the_answer_that_is_documented(
    api: Api, body: dict[str, Any]
) -> None:
    api.check(body, "requestBody")
    response = api.client.post(ROUTE, json=body)
    assert response.status_code == 200, response.text
    result = response.json()
    api.check(result, "responses", "200")
    assert result.keys() == {"model", "answers", "usage"}
    assert result["model"] == body["model"]
    assert list(result["answers"]) == list(body["questions"])
    for id_, answer in result["answers"].items():
        question = body["questions"][id_]
        assert answer["type"] == question["type"]
        if answer["type"] == "choice":
            assert list(answer["probabilities"]) == list(question["criteria"])
        if answer["type"] == "score":
            assert list(answer["legend"].values()) == question["criteria"]


@bounded
@given(garbled_chats)
def test_every_chat_is_answered_or_refused_in_a_sentence(api: Api, chat: list[Any]) -> None:
    response = api.client.post(ROUTE, json=ASK | {"state": {"messages": chat}})
    assert response.status_code in {200, 422}, response.text
    api.check(response.json(), "responses", str(response.status_code))


def raw_deflate(body: bytes) -> bytes:
    return zlib.compress(body, wbits=-15)


PACKERS = {
    "": bytes,
    "identity": bytes,
    "zstd": zstd.compress,
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": raw_deflate,
    "zstd, gzip": lambda body: gzip.compress(zstd.compress(body)),
}
visible = st.characters(min_codepoint=0x21, max_codepoint=0xFF)
header_texts = st.text(visible, min_size=1, max_size=12).map(lambda text: text.encode("latin-1"))
bodies = st.one_of(
    st.binary(max_size=60),
    values.map(lambda value: json.dumps(value).encode()),
    st.just(json.dumps(ASK).encode()),
    st.text(alphabet='{}[]":,\\ud80a1e9N ', max_size=40).map(str.encode),
)
cuts = st.none() | st.integers(min_value=-40, max_value=40)


def headers_of(
    coding: bytes, content_type: bytes | None, accept: bytes | None, key: bytes | None
) -> dict[str, bytes]:
    given = {
        "Content-Encoding": coding or None,
        "Content-Type": content_type,
        "Accept": accept,
        "Authorization": key,
    }
    return {name: value for name, value in given.items() if value is not None}


json_type = st.just(b"application/json")
headers = st.builds(
    headers_of,
    st.sampled_from([name.encode() for name in PACKERS]) | header_texts,
    st.none() | json_type | json_type | st.just(b"multipart/form-data") | header_texts,
    st.just(b"*/*") | st.just(b"application/json") | header_texts,
    st.none() | header_texts.map(lambda text: b"Bearer " + text) | header_texts,
)


@bounded
@given(
    method=st.sampled_from(["POST"] * 6 + ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"]),
    path=st.sampled_from([ROUTE] * 6 + ["/v1/models", "/v1/limits", "/health/live", "/v1/%ff?%ff"]),
    body=bodies,
    packing=st.sampled_from(sorted(PACKERS)),
    cut=cuts,
    chunked=st.booleans(),
    headers=headers,
)
def test_nothing_sent_makes_it_fail_hang_or_answer_in_another_form(
    api: Api,
    method: str,
    path: str,
    body: bytes,
    packing: str,
    cut: int | None,
    chunked: bool,
    headers: dict[str, bytes],
) -> None:
    packed = PACKERS[packing](body)[:cut]
    response = api.client.request(
        method, path, content=iter([packed]) if chunked else packed, headers=headers
    )
    assert response.status_code < 500, response.text
    assert response.headers["Content-Type"].startswith("application/json")
    assert response.headers["x-typesafe-request-id"].startswith("req_")
    answer = response.json()
    if response.status_code >= 400:
        assert answer["error"]["message"].endswith(".")
        is_list = isinstance(answer["detail"], list)
        assert is_list == (response.status_code == 422)
