"""Requests by the contract, drawn at random: those that must be answered, and chats that may be."""

from typing import Any

from hypothesis import strategies as st

from tests.support.hard_texts import hard_texts

texts = st.text(max_size=8) | hard_texts
names = st.text(min_size=1, max_size=12)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(names, values, max_size=3)
contents = texts | objects | st.lists(values, max_size=3)
instructions = st.none() | contents

messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
    optional={
        "content": st.none()
        | texts
        | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=2),
        "name": names,
    },
)
chats = st.lists(messages, min_size=1, max_size=4)
states = contents | chats | chats.map(lambda chat: {"messages": chat})

sides = st.fixed_dictionaries({}, optional={"true": instructions, "false": instructions})


def _asks_something(question: dict[str, Any]) -> bool:
    described = (question.get("criteria") or {}).values()
    return question.get("instructions") is not None or any(side is not None for side in described)


nouls = st.fixed_dictionaries(
    {"type": st.just("noul")},
    optional={"instructions": instructions, "criteria": st.none() | sides},
).filter(_asks_something)
choices = st.fixed_dictionaries(
    {
        "type": st.just("choice"),
        "criteria": st.dictionaries(names, instructions, min_size=2, max_size=5),
    },
    optional={"instructions": instructions},
)
scores = st.fixed_dictionaries(
    {"type": st.just("score"), "criteria": st.lists(contents, min_size=2, max_size=5)},
    optional={"instructions": instructions},
)
valid_requests = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["jev-latest", "jev-7", "tiny/random"]),
        "state": states,
        "questions": st.dictionaries(names, nouls | choices | scores, min_size=1, max_size=3),
    },
    optional={"seed": scalars, "x_trace": values, "assets": st.none()},
)

garbled_messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]) | values},
    optional={
        "content": values | st.lists(st.dictionaries(st.sampled_from(["type", "text"]), values)),
        "tool_calls": values
        | st.lists(
            st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": names})}), max_size=2
        ),
        "name": values,
    },
)
garbled_chats = st.lists(messages | garbled_messages, min_size=1, max_size=4)
