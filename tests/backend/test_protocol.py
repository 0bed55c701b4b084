"""What is sent to an engine, and what is believed of what it answers."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend import protocol
from backend.errors import (
    EngineBusy,
    EngineError,
    EngineProtocolError,
    EngineRejected,
    EngineUnavailable,
    UnusableLogprobs,
)
from backend.token_ids import TokenIds


def answer(entries, **meta):
    return json.dumps(
        {
            "text": "x",
            "output_ids": [1],
            "meta_info": {
                "finish_reason": {"type": "length", "length": 1},
                "prompt_tokens": 3,
                "completion_tokens": 1,
                "cached_tokens": 2,
                "output_token_ids_logprobs": [entries],
                **meta,
            },
        }
    ).encode()


def parse(body, label_ids=(7, 9)):
    call = protocol.Call(TokenIds.of([1, 2, 3]), label_ids, "e.001")
    return protocol.parse_label_logprobs(body, call)


GOOD = [[-1.5, 7, None], [-0.5, 9, None]]


def test_body_asks_for_one_token_at_temperature_0_and_the_labels_only():
    call = protocol.Call(TokenIds.of([1, 2, 3]), [7, 9], "e.001")
    body = json.loads(protocol.generate_body(call))
    assert body == {
        "rid": "e.001",
        "input_ids": [1, 2, 3],
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "return_logprob": True,
        "token_ids_logprob": [7, 9],
    }


def test_logprobs_come_in_the_order_asked_whatever_the_engines_order():
    result = parse(answer(GOOD[::-1]))
    assert result == protocol.LabelLogprobs((-1.5, -0.5), 3, 1, 2)


def test_a_label_asked_twice_is_answered_twice():
    body = answer([[-1.0, 7, None], [-1.0, 7, None]])
    assert parse(body, (7, 7)).logprobs == (-1.0, -1.0)


@pytest.mark.parametrize("meta", [{"cached_tokens": None}, {}])
def test_unreported_cache_counts_are_none_not_zero(meta):
    parsed = json.loads(answer(GOOD, **meta))
    if not meta:
        del parsed["meta_info"]["cached_tokens"]
    assert parse(json.dumps(parsed).encode()).cached_tokens is None


def test_rounding_above_zero_is_zero():
    assert parse(answer([[1e-7, 7, None], [0, 9, None]])).logprobs == (0.0, 0.0)


@pytest.mark.parametrize(
    "value", [None, math.nan, math.inf, -math.inf, 0.5, "-1.0", True, [], 10**400, -(10**400)]
)
def test_what_is_no_logprob_is_never_returned(value):
    with pytest.raises(UnusableLogprobs, match="log-probability"):
        parse(answer([[-1.0, 7, None], [value, 9, None]]))


@pytest.mark.parametrize(
    "positions",
    [
        [],
        None,
        "",
        [None],
        [[]],
        [GOOD, GOOD],
        [GOOD[:1]],
        [[*GOOD, [-3.0, 8, None]]],
        [[GOOD[0], [-0.5, 8, None]]],
        [[GOOD[0], [-0.5, "9", None]]],
        [[GOOD[0], [-0.5]]],
        [[GOOD[0], None]],
        [[GOOD[0], [-0.5, True]]],
    ],
)
def test_missing_or_malformed_labels_are_errors(positions):
    with pytest.raises(UnusableLogprobs):
        parse(answer(GOOD, output_token_ids_logprobs=positions))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt_tokens", 2),
        ("prompt_tokens", None),
        ("prompt_tokens", 3.0),
        ("completion_tokens", 0),
        ("completion_tokens", 2),
        ("cached_tokens", -1),
        ("cached_tokens", 4),
        ("cached_tokens", "2"),
        ("cached_tokens", True),
    ],
)
def test_counts_that_cannot_be_are_errors(name, value):
    with pytest.raises(EngineProtocolError, match=name):
        parse(answer(GOOD, **{name: value}))


@pytest.mark.parametrize("rid", ["e.002", "", None, 7])
def test_the_answer_to_another_call_is_an_error(rid):
    assert parse(answer(GOOD, id="e.001")) == parse(answer(GOOD))
    with pytest.raises(EngineProtocolError, match="another call"):
        parse(answer(GOOD, id=rid))


def test_an_aborted_call_is_an_error_although_its_status_is_200():
    with pytest.raises(EngineProtocolError, match="aborted") as caught:
        parse(answer(GOOD, finish_reason={"type": "abort", "message": "secret"}))
    assert type(caught.value) is EngineProtocolError  # the next call may go well


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"\xff", b'"x"', b"{}", b'{"meta_info": []}', b"[" * 100_000]
)
def test_bodies_that_are_no_answer_are_errors(body):
    with pytest.raises(EngineProtocolError):
        parse(body)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"error": {"message": "validation failed: x", "code": 400}}, EngineRejected),
        ({"object": "error", "message": "The request queue is full.", "code": 503},
         EngineBusy),
        ({"error": {"message": "x", "code": "400"}}, EngineProtocolError),
        ({"error": "Unauthorized"}, EngineProtocolError),
    ],
)  # fmt: skip
def test_an_error_inside_a_200_is_that_error(body, kind):
    with pytest.raises(kind):
        parse(json.dumps(body).encode())


@given(st.binary(max_size=200))
def test_no_bytes_whatever_raise_anything_but_engine_errors(body):
    with pytest.raises(EngineError):
        parse(body)
    assert isinstance(protocol.failure(500, body), EngineError)


def test_an_answer_nested_without_end_is_no_crash():
    body = b'{"error":' * 100_000
    with pytest.raises(EngineProtocolError):
        parse(body)
    assert type(protocol.failure(400, body)) is EngineRejected


PATH = "/opt/secret/server.py prompt text"
ENVELOPES = [
    {"error": {"message": PATH, "code": 400}},
    {"object": "error", "message": PATH, "type": "Bad Request", "param": None, "code": 400},
    {"error": PATH},
    {"detail": PATH},
    [PATH],
    PATH,
]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 422, 429, 499, 500, 502, 503])
@pytest.mark.parametrize("envelope", ENVELOPES)
def test_what_an_engine_says_is_never_passed_on(status, envelope):
    for body in (json.dumps(envelope).encode(), PATH.encode()):
        message = str(protocol.failure(status, body))
        assert "secret" not in message
        assert "prompt text" not in message
        assert message.endswith(".")


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_the_message_is_found_in_every_envelope(envelope):
    assert PATH in protocol.error_message(json.dumps(envelope).encode())


@pytest.mark.parametrize(
    ("status", "said", "kind", "shown"),
    [
        (503, "The request queue is full.", EngineBusy, "queue is full"),
        (503, "", EngineBusy, "status 503"),
        (502, "bad gateway", EngineBusy, "status 502"),
        (504, "", EngineBusy, "status 504"),
        (429, "", EngineBusy, "status 429"),
        (408, "", EngineBusy, "status 408"),
        (500, '{"error":{"code":"call_upstream_request_error","message":"http://10.0.0.7"}}',
         EngineUnavailable, "behind the router cannot be reached"),
        (401, "Unauthorized", EngineRejected, "OPENJEV_BACKEND_API_KEY"),
        (403, "", EngineRejected, "OPENJEV_BACKEND_API_KEY"),
        (400, "The input (9 tokens) is longer than …", EngineRejected, "context is too short"),
        (400, "Input length (9) exceeds the maximum allowed length", EngineRejected, "too short"),
        (400, "contains out-of-vocabulary token id 9", EngineRejected, "vocabulary"),
        (400, "", EngineRejected, "status 400"),
        (404, "Not Found", EngineRejected, "SGLang's protocol"),
        (499, "client disconnected", EngineProtocolError, "aborted"),
        (500, "Internal Server Error", EngineProtocolError, "status 500"),
        (302, "", EngineProtocolError, "leads to another (status 302)"),
    ],
)  # fmt: skip
def test_each_failure_has_its_kind_and_sentence(status, said, kind, shown):
    error = protocol.failure(status, said.encode())
    assert type(error) is kind
    assert shown in str(error)
    assert getattr(error, "status", status) == status


def test_tokens_are_asked_for_without_any_added():
    body = json.loads(protocol.tokenize_body("<|im_start|>é"))
    assert body == {"prompt": "<|im_start|>é", "add_special_tokens": False}


def test_tokens_are_what_the_engine_lists():
    assert protocol.parse_tokens(b'{"tokens":[1,1330],"count":2,"max_model_len":40960}') == [
        1,
        1330,
    ]


@pytest.mark.parametrize(
    "body", [{}, {"tokens": None}, {"tokens": [1, "2"]}, {"tokens": [[1]]}, []]
)
def test_an_answer_without_tokens_is_an_error(body):
    with pytest.raises(EngineProtocolError):
        protocol.parse_tokens(json.dumps(body).encode())
