"""What is read of an engine's own description; bodies as received from real servers."""

import json

import pytest

from backend.description import (
    EngineDescription,
    ServerDetails,
    longest_input,
    parse_details,
    parse_served_model,
)
from backend.errors import EngineProtocolError

# The parts that matter, of 495 keys of SGLang 0.5.19's Python front.
PYTHON = {
    "model_path": "nvidia/Qwen3.6-35B-A3B-NVFP4",
    "api_key": "s3cret",
    "disable_radix_cache": False,
    "allow_auto_truncate": False,
    "speculative_algorithm": None,
    "enable_mis": False,
    "status": "ready",
    "max_total_num_tokens": 60000,
    "max_req_input_len": 40954,
    "version": "0.5.19",
}
RUST = {
    "model_path": "nvidia/Qwen3.6-35B-A3B-NVFP4",
    "max_context_length": 40960,
    "max_total_num_tokens": 60000,
    "version": "0.5.19",
    "internal_states": [{"last_gen_throughput": 0.0}],
}
ROUTER = {"router_manager": True, "routers_count": 1, "workers_count": 1}
EMBEDDED = {"version": "openjev-embedded", "max_req_input_len": 8186, "vocab_size": 151936}


def details(path, facts):
    return parse_details(path, json.dumps(facts).encode())


@pytest.mark.parametrize(
    ("path", "facts", "expected"),
    [
        ("/get_server_info", PYTHON, ServerDetails("python", "0.5.19", 40954, 60000)),
        ("/server_info", RUST, ServerDetails("rust", "0.5.19", None, 60000)),
        ("/get_server_info", ROUTER, ServerDetails("router", None, None, None)),
        ("/get_server_info", EMBEDDED, ServerDetails("embedded", "openjev-embedded", 8186, None)),
    ],
)
def test_every_front_is_told_by_what_it_says(path, facts, expected):
    assert details(path, facts) == expected


@pytest.mark.parametrize(
    ("said", "warms_up"),
    [({"skip_server_warmup": False}, True), ({"skip_server_warmup": True}, False), ({}, False)],
)
def test_a_warm_up_is_told_by_the_flag_that_skips_it(said, warms_up):
    assert details("/get_server_info", PYTHON | said).warms_up is warms_up


def test_keys_of_an_engine_are_not_kept():
    assert "s3cret" not in repr(details("/get_server_info", PYTHON))


@pytest.mark.parametrize(
    ("set_there", "flags"),
    [
        ({"disable_radix_cache": True}, ("--disable-radix-cache",)),
        ({"allow_auto_truncate": True}, ("--allow-auto-truncate",)),
        ({"speculative_algorithm": "EAGLE"}, ("--speculative-algorithm",)),
        ({"enable_mis": True, "disable_radix_cache": True},
         ("--disable-radix-cache", "--enable-mis")),
        ({"enable_metrics": True}, ()),
    ],
)  # fmt: skip
def test_flags_that_may_harm_are_named_as_on_the_command_line(set_there, flags):
    assert details("/get_server_info", PYTHON | set_there).flags == flags


@pytest.mark.parametrize("nonsense", [0, -1, "40954", None, True, 1.5])
def test_numbers_that_are_none_are_as_good_as_missing(nonsense):
    facts = {"max_req_input_len": nonsense, "max_total_num_tokens": nonsense, "version": 5}
    assert details("/get_server_info", facts) == ServerDetails("python")


@pytest.mark.parametrize("nonsense", ["0.5\nA line of our log", "\x1b[2J", "9" * 65])
def test_a_version_cannot_write_into_the_log(nonsense):
    assert details("/get_server_info", {"version": nonsense}).version is None


@pytest.mark.parametrize("body", [b"", b"[]", b"OK"])
def test_a_description_that_is_no_object_is_an_error(body):
    with pytest.raises(EngineProtocolError):
        parse_details("/get_server_info", body)


@pytest.mark.parametrize(
    ("context", "told", "expected"),
    [
        (40960, ServerDetails(max_input_tokens=40000), 40000),
        (40960, ServerDetails(), 40954),
        (40960, ServerDetails(pool_tokens=60000), 40954),
        (40960, ServerDetails(pool_tokens=20000), 19994),  # the memory is the shorter of the two
        (None, ServerDetails(), None),
        (None, ServerDetails(max_input_tokens=40000), 40000),
    ],
)
def test_longest_input_is_what_is_said_or_six_below_context_and_memory(context, told, expected):
    assert longest_input(context, told) == expected


def test_served_model_and_context_length():
    body = b'{"object":"list","data":[{"id":"m","max_model_len":4096}]}'
    assert parse_served_model(body) == ("m", 4096)


def test_a_router_names_the_model_but_no_length():
    body = b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"local"}]}'
    assert parse_served_model(body) == ("m", None)


def test_an_adapter_is_not_a_model_of_its_own():
    body = b'{"data":[{"id":"m","max_model_len":9},{"id":"a","parent":"m","max_model_len":9}]}'
    assert parse_served_model(body) == ("m", 9)


def test_a_router_in_front_of_different_models_serves_none_of_them():
    body = b'{"data":[{"id":"two"},{"id":"one"}]}'
    assert parse_served_model(body) == ("one, two", None)


@pytest.mark.parametrize(
    "models",
    [{}, {"data": []}, {"data": [1]}, {"data": [{"max_model_len": 5}]},
     {"data": [{"id": 3, "max_model_len": 5}]}, {"data": [{"id": "m", "max_model_len": 0}]},
     {"data": [{"id": "m", "max_model_len": "5"}]}],
)  # fmt: skip
def test_a_model_list_without_name_or_with_an_impossible_length_is_an_error(models):
    with pytest.raises(EngineProtocolError, match="/v1/models"):
        parse_served_model(json.dumps(models).encode())


@pytest.mark.parametrize(
    ("described", "line"),
    [
        (
            EngineDescription("m", 40960, 40954, "python", "0.5.19", True, True),
            "SGLang 0.5.19, Python front, model 'm', inputs shorter than 40954 tokens, "
            "calls aborted by name, cached tokens counted",
        ),
        (
            EngineDescription("m", 40960, 40954, "rust", None, False, False),
            "SGLang of unknown version, Rust front, model 'm', inputs shorter than 40954 tokens, "
            "calls aborted by hanging up, cached tokens not counted",
        ),
        (
            EngineDescription("m", None, None, "router", None, False, True),
            "sglang-router, model 'm', context length unknown, "
            "calls aborted by hanging up, cached tokens counted",
        ),
    ],
)
def test_one_line_tells_the_front_and_what_it_can_do(described, line):
    assert str(described) == line
