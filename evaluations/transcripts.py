"""A state as chat messages: which states are transcripts, and what is wrong with a bad one.

A transcript is a non-empty list of objects that all have a `role`, or an object whose only key is
`messages` and whose value is such a list. Everything else is one user message: text as it is, any
other JSON whole and in compact form. Pure; what the model's template makes of the messages is not
known here.
"""

import json
from collections.abc import Iterator
from typing import Any

from evaluations.exceptions import Fault, InvalidRequest
from evaluations.questions import Content
from evaluations.quoting import found, shortened
from evaluations.strict_json import parse_json

ROLES = ("system", "user", "assistant", "tool")
_AS_ROLES = "one of 'system', 'user', 'assistant' and 'tool'"
_DATA_HINT = (
    " A list of objects with a `role` is read as a chat; to have it judged as data, wrap it in an "
    "object with a key other than `messages`."
)

Loc = tuple[str | int, ...]


def messages_of(state: Content) -> list[dict[str, Any]]:
    """Turn a state into the chat messages that show it to the model.

    Args:
        state: as the caller sent it.

    Raises:
        InvalidRequest: it is a transcript with malformed messages (all are named), or nested too
            deeply to be written out.
    """
    transcript = transcript_of(state)
    if transcript is None:
        return [{"role": "user", "content": content_text(state, ("state",))}]
    messages, loc = transcript
    faults = [
        fault
        for index, message in enumerate(messages)
        for fault in _message_faults(message, (*loc, index), index)
    ]
    if faults:
        raise InvalidRequest(faults)
    return [_normalised(message) for message in messages]


def transcript_of(state: Content) -> tuple[list[dict[str, Any]], Loc] | None:
    """Find the messages in a state and where they are; `None` where it is no transcript."""
    loc: Loc = ("state",)
    messages: Any = state
    if isinstance(state, dict) and state.keys() == {"messages"}:
        messages, loc = state["messages"], ("state", "messages")
    if not isinstance(messages, list) or not messages:
        return None
    if all(isinstance(item, dict) and "role" in item for item in messages):
        return messages, loc
    return None


def content_text(content: Content, loc: Loc) -> str:
    """Write content out: text as it is, JSON in compact form with its characters kept.

    Args:
        content: the caller's.
        loc: where it stands in the request, for a fault.

    Raises:
        InvalidRequest: it is nested too deeply.
    """
    if isinstance(content, str):
        return content
    try:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        message = f"`{loc[-1]}` is nested too deeply. Flatten it, or send it as text."
        raise InvalidRequest([Fault("too_deep", loc, message)]) from None


def _message_faults(message: dict[str, Any], loc: Loc, index: int) -> Iterator[Fault]:
    role = message["role"]
    if not isinstance(role, str) or role not in ROLES:
        text = f"Message {index}: `role` is {found(role)}. It must be {_AS_ROLES}.{_DATA_HINT}"
        yield Fault("bad_role", (*loc, "role"), text)
    yield from _content_faults(message.get("content"), (*loc, "content"), index)
    yield from _tool_call_faults(message.get("tool_calls"), (*loc, "tool_calls"), index)


def _content_faults(content: Any, loc: Loc, index: int) -> Iterator[Fault]:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        text = (
            f"Message {index}: `content` is {found(content)}. It must be a string, null or a "
            "list of text parts."
        )
        yield Fault("bad_content", loc, text)
        return
    for number, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            text = (
                f"Message {index}: part {number} of `content` is not an object with a `type`. It "
                'must be {"type": "text", "text": …}.'
            )
            yield Fault("bad_part", (*loc, number), text)
        elif part["type"] != "text":
            text = (
                f"Message {index}: part {number} of `content` is of type "
                f"{shortened(part['type'])!r}. This server takes text only; leave the part out or "
                "describe it in words."
            )
            yield Fault("unsupported_part", (*loc, number, "type"), text)
        elif not isinstance(part.get("text"), str):
            text = f"Message {index}: part {number} of `content` has no `text` that is a string."
            yield Fault("bad_part", (*loc, number, "text"), text)


def _tool_call_faults(calls: Any, loc: Loc, index: int) -> Iterator[Fault]:
    if calls is None:
        return
    if not isinstance(calls, list):
        text = f"Message {index}: `tool_calls` is {found(calls)}. It must be a list."
        yield Fault("bad_tool_calls", loc, text)
        return
    for number, call in enumerate(calls):
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            text = (
                f"Message {index}: tool call {number} names no function. It must be an object "
                'such as {"type": "function", "function": {"name": …, "arguments": …}}.'
            )
            yield Fault("bad_tool_calls", (*loc, number), text)
        elif not isinstance(function.get("arguments", {}), str | dict | None):
            text = (
                f"Message {index}: the arguments of tool call {number} are "
                f"{found(function['arguments'])}. They must be an object, or one written as text."
            )
            yield Fault("bad_tool_calls", (*loc, number), text)


def _normalised(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content)
    # Templates add strings to the content, and iterate over tool calls that are there at all.
    kept = {key: value for key, value in message.items() if value is not None}
    kept["content"] = content or ""
    if kept.get("tool_calls"):
        kept["tool_calls"] = [_normalised_call(call) for call in kept["tool_calls"]]
    return kept


def _normalised_call(call: dict[str, Any]) -> dict[str, Any]:
    if "function" in call:
        return {**call, "function": _with_arguments(call["function"])}
    return _with_arguments(call)


def _with_arguments(function: dict[str, Any]) -> dict[str, Any]:
    # OpenAI's clients write arguments as text, most templates want the object that it says. Text
    # that no body could be stays text: half a surrogate pair cannot be tokenised, and of a key that
    # stands twice one would be lost.
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = parse_json(arguments.encode())
        except InvalidRequest:
            parsed = None
        return {**function, "arguments": parsed if isinstance(parsed, dict) else arguments}
    return {**function, "arguments": arguments or {}}
