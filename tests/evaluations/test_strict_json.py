"""Strict JSON: whatever is wrong with a body is a refusal, wherever it stands."""

import json
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluations.exceptions import Fault, InvalidRequest
from evaluations.strict_json import MAX_NESTING, MAX_VALUES, parse_json

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def refused(body: bytes) -> tuple[Fault, ...]:
    with pytest.raises(InvalidRequest) as caught:
        parse_json(body)
    return caught.value.faults


@given(JSON)
def test_reads_what_json_writes(value: Any) -> None:
    for ascii_only in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_only)
        assert parse_json(text.encode("utf-8", "surrogatepass")) == value


@given(st.binary() | st.text(alphabet='{}[]":,\\ud80a1e9N ').map(str.encode))
def test_anything_else_is_refused_with_a_sentence(body: bytes) -> None:
    faults: tuple[Fault, ...] | None = None
    try:
        parse_json(body)
    except InvalidRequest as error:
        faults = error.faults
    assert faults is None or (faults and all(fault.message.endswith(".") for fault in faults))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"  \n", b"{", b'{"a":1} x', b"{'a':1}", b'{"a":1,}', b"nul", b"\xff\xfe{}",
        b'{"a":"\xed\xa0\x80"}', b'{"a":"\x01"}', b"1" * 5000, b'{"a":' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused(body: bytes) -> None:
    (fault,) = refused(body)
    assert (fault.type, fault.loc) == ("json_invalid", ())


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b'{"a": "b', "Unterminated string starting at line 1, column 7"),
        (b'{"a":\n "\x01"}', "Invalid control character at line 2, column 3"),
        (rb'{"a": "\q"}', r"Invalid \escape at line 1, column 8"),
        (b'{"a" 1}', "Expecting ':' delimiter at line 1, column 6"),
    ],
)
def test_the_place_of_a_fault_ends_the_sentence(body: bytes, what: str) -> None:
    (fault,) = refused(body)
    assert fault.message == f"The body is not valid JSON: {what}."


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize(
    ("template", "loc"),
    [
        ('{"model":%s}', ("model",)),
        ('{"state":{"a":[1,%s]}}', ("state", "a", 1)),
        ('{"x":%s}', ("x",)),
        ("%s", ()),
    ],
)
def test_numbers_that_are_not_finite_are_refused_where_they_stand(
    number: str, template: str, loc: tuple[str | int, ...]
) -> None:
    (fault,) = refused((template % number).encode())
    assert (fault.type, fault.loc) == ("not_finite", loc)


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        (r'{"state":"\ud800"}', ("state",)),
        (r'{"model":"a\uDFFFb"}', ("model",)),
        (r'{"questions":{"\ud83d":{}}}', ("questions", r"\ud83d")),
        (r'{"questions":{"q":{"x":{"\udc00":1}}}}', ("questions", "q", "x", r"\udc00")),
        (r'{"x":["\ude00\ud83d"]}', ("x", 0)),
    ],
)
def test_lone_surrogates_are_refused_where_they_stand(
    body: str, loc: tuple[str | int, ...]
) -> None:
    (fault,) = refused(body.encode())
    assert (fault.type, fault.loc) == ("lone_surrogate", loc)
    fault.message.encode()


def test_surrogate_pairs_and_escaped_backslashes_are_text() -> None:
    assert parse_json(rb'"\ud83d\ude00"') == "😀"
    assert parse_json(rb'"\\ud800"') == "\\ud800"


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ('{"questions":{"a":{},"b":{},"a":{}}}', ("questions", "a")),
        ('{"questions":{"q":{"criteria":{"x":1,"x":1}}}}', ("questions", "q", "criteria", "x")),
        ('{"model":"a","model":"b"}', ("model",)),
        ('{"state":{"a":{"b":1,"b":2}}}', ("state", "a", "b")),
        (r'{"state":{"b":1,"\u0062":2}}', ("state", "b")),
    ],
)
def test_repeated_keys_are_refused_where_they_stand(body: str, loc: tuple[str, ...]) -> None:
    (fault,) = refused(body.encode())
    assert (fault.type, fault.loc) == ("repeated_key", loc)
    assert repr(loc[-1]) in fault.message


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("depth", [MAX_NESTING + 1, 5000, 500_000])
def test_deep_nesting_is_refused_without_recursion(opening: bytes, depth: int) -> None:
    (fault,) = refused(opening * depth)
    assert fault.type == "too_deep"
    assert str(MAX_NESTING) in fault.message


def test_nesting_up_to_the_limit_is_read_and_written_under_a_deep_stack() -> None:
    body = b"[" * MAX_NESTING + b"]" * MAX_NESTING

    def deeper(frames: int) -> Any:
        return deeper(frames - 1) if frames else json.dumps(parse_json(body))

    assert deeper(sys.getrecursionlimit() // 2) == body.decode()


def test_brackets_inside_texts_and_side_by_side_are_no_nesting() -> None:
    text = '[{"' * 1000 + '\\"'
    assert parse_json(json.dumps([text] * 3).encode()) == [text] * 3
    assert parse_json(b"[" + b"[]," * 500 + b"[]]") == [[]] * 501


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200 + b'"' + b'\\"' * 500_000,
        b"[" * 200 + b'"' + b"\\" * 999_999,
        b'{"a":' * 200 + b'"a' * 500_000,
        b"[" * 200 + b"[]," * 300_000,
    ],
)
def test_hostile_bodies_are_refused_in_time_that_grows_with_their_size(body: bytes) -> None:
    started = time.process_time()
    assert refused(body)
    assert time.process_time() - started < 5  # about 0.1; growing with the square: minutes


@pytest.mark.parametrize(
    ("item", "values"),
    [("0", 1), ("[ ]", 1), ("{}", 1), ('"],[{,"', 1), ("[0]", 2), ('{"a":0,"[":[]}', 3)],
)
def test_more_values_than_fit_into_any_prompt_are_refused(item: str, values: int) -> None:
    room = (MAX_VALUES - 1) // values
    assert len(parse_json(f"[{','.join([item] * room)}]".encode())) == room
    (fault,) = refused(f"[{','.join([item] * (room + 1))}]".encode())
    assert (fault.type, fault.loc) == ("too_many_values", ())
    assert str(MAX_VALUES) in fault.message


@pytest.mark.parametrize("innermost", [b"", b"0", b"[]", b"{ }"])
def test_nesting_is_counted_to_the_innermost_container(innermost: bytes) -> None:
    outer = MAX_NESTING - (b"]" in innermost or b"}" in innermost)
    assert parse_json(b"[" * outer + innermost + b"]" * outer)
    (fault,) = refused(b"[" * (outer + 1) + innermost + b"]" * (outer + 1))
    assert fault.type == "too_deep"


def test_number_of_faults_named_is_bounded() -> None:
    assert len(refused(b'["a"' + rb',"\ud800"' * 1000 + b"]")) == 20


def test_byte_order_mark_is_ignored() -> None:
    assert parse_json(b"\xef\xbb\xbf{}") == {}
