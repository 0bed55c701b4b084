from typing import Any

import pytest

from evaluations.exceptions import InvalidRequest
from evaluations.labels import CANDIDATES, Label, labels_for
from evaluations.question_text import option_count, question_text
from evaluations.questions import ChoiceQuestion, NoulQuestion, Question, ScoreQuestion
from evaluations.wording import DEFAULT_WORDING as W

ALL = tuple(Label(text, number) for number, text in enumerate(CANDIDATES))


def labels_of(question: Question) -> list[str]:
    return [label.text for label in labels_for(ALL, option_count(question))]


def shown(question: Question) -> list[str]:
    lines = question_text(question, W, labels_of(question)).split("\n")
    assert lines[0].startswith("Question: ")
    return [lines[0].removeprefix("Question: "), *lines[1:]]


def test_options_have_labels_and_hide_keys() -> None:
    question = ChoiceQuestion("id", {"secret-key": "Money", "other-key": {"b": ["é"]}}, "Which?")
    assert shown(question) == ["Which?", "[A] Money", '[B] {"b":["é"]}']


@pytest.mark.parametrize("blank", [None, "", " \n"])
def test_option_without_description_shows_its_key(blank: str | None) -> None:
    question = ChoiceQuestion("id", {"billing": blank, "other-key": "Rest"}, "Which?")
    assert shown(question) == ["Which?", "[A] billing", "[B] Rest"]


def test_empty_json_is_a_description() -> None:
    assert shown(ChoiceQuestion("id", {"a": {}, "b": []}, "?")) == ["?", "[A] {}", "[B] []"]


def test_no_line_of_a_text_can_pass_for_an_option() -> None:
    breaks = ["\n", "\r\n", "\r", "\u2028", "\u2029", "\x85", "\x0b", "\x0c"]
    for at in breaks:
        question = ChoiceQuestion(
            "id", {f"x{at}[C] key": None, "y": f"y{at}[C] text"}, f"q{at}[A] no"
        )
        assert shown(question) == [
            "q",
            "   [A] no",
            "[A] x",
            "   [C] key",
            "[B] y",
            "   [C] text",
        ]


@pytest.mark.parametrize(
    ("question", "asks"),
    [
        (ChoiceQuestion("id", {"a": None, "b": None}), W.asks_choice),
        (ScoreQuestion("id", ("low", "high"), " "), W.asks_score),
        (NoulQuestion("id", None, "x", "y"), W.asks_noul),
    ],
)
def test_question_without_instructions_asks_which(question: Question, asks: str) -> None:
    assert shown(question)[0] == asks


def test_levels_are_shown_in_order() -> None:
    question = ScoreQuestion("id", ("low", {"x": 1}, "", ["high"]), {"task": "rate"})
    assert shown(question) == [
        '{"task":"rate"}',
        "[A] low",
        '[B] {"x":1}',
        f"[C] {W.level.format(number=3, count=4)}",
        '[D] ["high"]',
    ]


YES, NO = W.yes_described, W.no_described


@pytest.mark.parametrize(
    ("instructions", "true", "false", "options"),
    [
        ("Is it so?", None, None, [W.yes, W.no]),
        ("Is it so?", "wet", "dry", [YES.format(text="wet"), NO.format(text="dry")]),
        ("Is it so?", "wet", None, [YES.format(text="wet"), W.no]),
        ("Is it so?", None, {"x": 1}, [W.yes, NO.format(text='{"x":1}')]),
        ("Is it so?", "", " ", [W.yes, W.no]),
        (None, "wet", "dry", [YES.format(text="wet"), NO.format(text="dry")]),
        (None, "wet", None, [YES.format(text="wet"), NO.format(text=W.other_holds)]),
        (None, None, "dry", [YES.format(text=W.other_holds), NO.format(text="dry")]),
        (None, "{0} {text}", "%s", [YES.format(text="{0} {text}"), NO.format(text="%s")]),
    ],
)
def test_sides_say_what_yes_and_no_mean(
    instructions: str | None, true: Any, false: Any, options: list[str]
) -> None:
    question = NoulQuestion("id", instructions, true, false)
    assert shown(question)[1:] == [f"[A] {options[0]}", f"[B] {options[1]}"]


def test_options_beyond_the_letters_have_pairs_behind_them() -> None:
    few = ChoiceQuestion("id", {f"k{n}": None for n in range(26)}, "?")
    assert (shown(few)[1], shown(few)[26]) == ("[A] k0", "[Z] k25")
    many = ChoiceQuestion("id", {f"k{n}": None for n in range(255)}, "?")
    assert (shown(many)[1], shown(many)[255]) == ("k0 [AA]", f"k254 [{CANDIDATES[26 + 254]}]")


@pytest.mark.parametrize(
    ("question", "count"),
    [
        (NoulQuestion("id", "?"), 2),
        (ChoiceQuestion("id", {"a": None, "b": None, "c": None}), 3),
        (ScoreQuestion("id", ("a", "b", "c", "d")), 4),
    ],
)
def test_option_count(question: Question, count: int) -> None:
    assert option_count(question) == count
    assert len(shown(question)) == count + 1


def test_text_that_is_nested_too_deeply_is_named() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequest) as refused:
        question_text(NoulQuestion("my id", deep), W, ["A", "B"])
    assert refused.value.faults[0].loc == ("questions", "my id", "instructions")
