import json
from typing import Any

import pytest

from evaluations.exceptions import InvalidRequest
from evaluations.questions import Content
from evaluations.transcripts import messages_of

TURN = {"role": "user", "content": "hi"}


def faults_of(state: Content) -> list[tuple[tuple[str | int, ...], str]]:
    with pytest.raises(InvalidRequest) as refused:
        messages_of(state)
    return [(fault.loc, fault.message) for fault in refused.value.faults]


@pytest.mark.parametrize(
    "state", ["", "text", " two\nlines \n", "<|im_start|>system\n", "[]", "null"]
)
def test_text_is_one_user_turn_as_it_is(state: str) -> None:
    assert messages_of(state) == [{"role": "user", "content": state}]


@pytest.mark.parametrize(
    "state",
    [
        [],
        {},
        [1, "two", None],
        {"messages": []},
        {"messages": "text"},
        {"messages": ["text"]},
        {"messages": [TURN], "topic": "x"},
        {"Messages": [TURN]},
        [TURN, "text"],
        [TURN, {"content": "no role"}],
        [[TURN]],
        {"한국어": ["é", 1.5, True, None, {"a": "\n"}]},
    ],
)
def test_anything_but_a_transcript_is_data_and_shown_whole(state: Content) -> None:
    (message,) = messages_of(state)
    assert message["role"] == "user"
    assert json.loads(message["content"]) == state
    assert message["content"] == json.dumps(state, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize(
    "wrap", [lambda messages: messages, lambda messages: {"messages": messages}]
)
def test_list_of_messages_is_a_transcript(wrap: Any) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi", "name": "Kim"},
        {"role": "assistant", "content": "hello", "reasoning_content": "greet"},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ]
    assert messages_of(wrap(messages)) == messages


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "one"}], "one"),
        ([{"type": "text", "text": "one"}, {"type": "text", "text": "two", "x": 1}], "one\ntwo"),
    ],
)
def test_content_may_be_null_or_text_parts(content: Any, shown: str) -> None:
    assert messages_of([{"role": "user", "content": content}]) == [
        {"role": "user", "content": shown}
    ]


def test_content_may_be_absent() -> None:
    call = {"type": "function", "id": "1", "function": {"name": "f", "arguments": {"a": 1}}}
    assert messages_of([{"role": "assistant", "tool_calls": [call], "refusal": None}]) == [
        {"role": "assistant", "content": "", "tool_calls": [call]}
    ]


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ('{"a":"é"}', {"a": "é"}),
        ("not json", "not json"),
        ("[1]", "[1]"),
        ("[" * 100_000, "[" * 100_000),
        (r'{"a":"\ud800"}', r'{"a":"\ud800"}'),
        (r'{"\udfff":1}', r'{"\udfff":1}'),
        ('{"a":NaN}', '{"a":NaN}'),
        ('{"a":1,"a":2}', '{"a":1,"a":2}'),
        (None, {}),
        ({"a": 1}, {"a": 1}),
    ],
)
@pytest.mark.parametrize("flat", [True, False])
def test_arguments_written_as_text_are_read(arguments: Any, kept: Any, flat: bool) -> None:
    function = {"name": "f", "arguments": arguments}
    call = function if flat else {"type": "function", "function": function}
    (message,) = messages_of([{"role": "assistant", "tool_calls": [call]}])
    (read,) = message["tool_calls"]
    assert (read if flat else read["function"]) == {"name": "f", "arguments": kept}


def test_call_without_arguments_has_none() -> None:
    (message,) = messages_of([{"role": "assistant", "tool_calls": [{"name": "f"}]}])
    assert message["tool_calls"] == [{"name": "f", "arguments": {}}]


def test_null_and_empty_tool_calls_are_none() -> None:
    messages = [{"role": "user", "tool_calls": None}, {"role": "user", "tool_calls": []}]
    assert messages_of(messages) == [
        {"role": "user", "content": ""},
        {"role": "user", "content": "", "tool_calls": []},
    ]


@pytest.mark.parametrize(
    ("role", "said"),
    [
        (None, "null"),
        (5, "the number 5"),
        (["user"], "an array of 1 item"),
        ({"a": 1}, "an object with 1 key"),
        (True, "true"),
        ("", "the string ''"),
        ("developer", "the string 'developer'"),
        ("User", "the string 'User'"),
    ],
)
def test_odd_roles_are_named_with_their_message(role: Any, said: str) -> None:
    ((loc, message),) = faults_of([TURN, {"role": role, "content": "x"}])
    assert loc == ("state", 1, "role")
    assert message.startswith(f"Message 1: `role` is {said}. It must be one of")
    assert "wrap it in an object" in message


@pytest.mark.parametrize(
    ("content", "said"),
    [(5, "the number 5"), (True, "true"), ({"text": "x"}, "an object with 1 key"), (1.5, "the nu")],
)
def test_content_that_is_no_text_is_named_with_its_message(content: Any, said: str) -> None:
    ((loc, message),) = faults_of({"messages": [{"role": "user", "content": content}]})
    assert loc == ("state", "messages", 0, "content")
    assert message.startswith(f"Message 0: `content` is {said}")


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video", "file", "Text", ""])
def test_other_parts_are_named_with_message_and_type(kind: str) -> None:
    parts = [{"type": "text", "text": "x"}, {"type": kind, kind: {"url": "http://x"}}]
    ((loc, message),) = faults_of([TURN, TURN, {"role": "user", "content": parts}])
    assert loc == ("state", 2, "content", 1, "type")
    assert message.startswith(f"Message 2: part 1 of `content` is of type {kind!r}.")


@pytest.mark.parametrize(
    "part", ["text", None, [], {}, {"text": "x"}, {"type": ["text"]}, {"type": {}, "text": "x"}]
)
def test_parts_that_are_none_are_named(part: Any) -> None:
    ((loc, message),) = faults_of([{"role": "user", "content": [part]}])
    assert loc == ("state", 0, "content", 0)
    assert message.startswith("Message 0: part 0")


@pytest.mark.parametrize("part", [{"type": "text"}, {"type": "text", "text": None}])
def test_text_parts_need_text(part: Any) -> None:
    ((loc, _),) = faults_of([{"role": "user", "content": [part]}])
    assert loc == ("state", 0, "content", 0, "text")


@pytest.mark.parametrize(
    "calls",
    [
        "f()",
        {"name": "f"},
        5,
        [None],
        ["f"],
        [{}],
        [{"function": None}],
        [{"function": "f"}],
        [{"function": {}}],
        [{"function": {"name": 5}}],
        [{"function": {"name": "f", "arguments": 5}}],
        [{"function": {"name": "f", "arguments": ["x"]}}],
    ],
)
def test_garbage_tool_calls_are_named_with_their_message(calls: Any) -> None:
    ((loc, message),) = faults_of([TURN, {"role": "assistant", "tool_calls": calls}])
    assert loc[:3] == ("state", 1, "tool_calls")
    assert message.startswith("Message 1: ")


def test_all_faults_are_listed() -> None:
    messages = [{"role": 1, "content": 2, "tool_calls": 3}, {"role": "user", "content": [4, 5]}]
    assert len(faults_of(messages)) == 5


def test_nesting_beyond_what_can_be_written_is_refused() -> None:
    state: Any = []
    for _ in range(100_000):
        state = [state]
    ((loc, message),) = faults_of(state)
    assert loc == ("state",)
    assert "too deeply" in message
