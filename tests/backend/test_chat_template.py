"""Strings that could act as control tokens are taken out before rendering, and come back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from backend.chat_template import (
    ChatTemplate,
    ControlStrings,
    Placeholders,
    TemplateRefused,
    conceal_messages,
)
from tests.support.hard_texts import CONTROL, hard_texts

CONTROLS = ControlStrings([*CONTROL, "<tool_call>", "|>|>"])
MESSAGES = [{"role": "user", "content": "hi"}]


@given(hard_texts)
def test_concealed_text_holds_no_control_string_and_comes_back(text: str) -> None:
    placeholders = Placeholders()
    safe = CONTROLS.conceal(text, placeholders)
    assert not any(control in safe for control in CONTROLS.texts)
    assert placeholders.restore(safe) == text


@given(st.lists(hard_texts, min_size=2, max_size=4))
def test_concealed_texts_cannot_be_joined_into_a_control_string(texts: list[str]) -> None:
    placeholders = Placeholders()
    joined = "".join(CONTROLS.conceal(text, placeholders) for text in texts)
    assert not any(control in joined for control in CONTROLS.texts)
    assert placeholders.restore(joined) == "".join(texts)


def test_longer_control_string_wins_over_the_one_that_begins_it() -> None:
    controls = ControlStrings(["<a>", "<a><b>"])
    assert controls.split("x<a><b>y<a>") == ["x", "<a><b>", "y", "<a>", ""]


def test_tokenizer_without_control_tokens_needs_no_concealment() -> None:
    controls = ControlStrings([])
    assert controls.conceal("<|im_start|>", Placeholders()) == "<|im_start|>"
    assert controls.split("text") == ["text"]


def test_messages_are_copied_whole() -> None:
    message = {"role": "user", "content": "plain", "n": 3, "none": None, "list": [True, ("x y",)]}
    copied = conceal_messages([message], CONTROLS, Placeholders())
    assert copied == [
        {"role": "user", "content": "plain", "n": 3, "none": None, "list": [True, ["x y"]]}
    ]


def test_caller_cannot_guess_a_placeholder() -> None:
    assert Placeholders().slot != Placeholders().slot


def test_template_gets_its_variables_and_thinking_is_off() -> None:
    source = (
        "{{ bos_token }}{{ messages[0].content }}{{ enable_thinking }}{{ add_generation_prompt }}"
    )
    template = ChatTemplate(source, {"bos_token": "<s>"})
    assert template.render(MESSAGES) == "<s>hiFalseTrue"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "hi"},
        {"role": "assistant", "content": "", "reasoning": "because"},
        {"role": "assistant", "content": "é", "thinking": "hm", "reasoning_content": "so"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1]}}}]},
    ],
)
def test_what_is_rendered_is_what_transformers_renders(message: dict[str, Any]) -> None:
    source = (
        "{%- for message in messages -%}{{ message | tojson }}{{ message.reasoning_content }}"
        "{{ message.thinking }}{% if message.tool_calls %}\n  {{ message.tool_calls[0] }}\n"
        "{% endif %}{%- endfor -%}{{ tools }}{{ documents }}{{ nothing is defined }}{{ eos_token }}"
    )
    variables = {"eos_token": "</s>"}
    rendered, _ = render_jinja_template(
        conversations=[[message, *MESSAGES]],
        chat_template=source,
        add_generation_prompt=True,
        enable_thinking=False,
        **variables,
    )
    assert ChatTemplate(source, variables).render([message, *MESSAGES]) == rendered[0]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('Roles must alternate.') }}", "^Roles must alternate$"),
        ("{{ messages[0].nothing.deeper }}", "nothing"),
        ("{{ 'a' + messages }}", "TypeError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{% if %}", "Expected"),
    ],
)
def test_every_failure_of_a_template_is_a_refusal(source: str, said: str) -> None:
    with pytest.raises(TemplateRefused, match=said):
        ChatTemplate(source, {}).render(MESSAGES)


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


def test_deep_nesting_is_a_refusal() -> None:
    with pytest.raises(TemplateRefused, match="deeply"):
        conceal_messages([{"x": nested(5_000)}], CONTROLS, Placeholders())
    with pytest.raises(TemplateRefused, match="deeply"):
        ChatTemplate("{{ messages }}", {}).render([{"role": "user", "x": nested(5_000)}])
