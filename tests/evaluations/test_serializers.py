"""The contract's tables, row by row: what is accepted becomes a question, what is not is named."""

from typing import Any

import pytest

from evaluations.exceptions import Fault, InvalidRequest
from evaluations.questions import ChoiceQuestion, NoulQuestion, ScoreQuestion
from evaluations.serializers import read_evaluation
from tests.evaluations.conftest import Configure

NOUL = {"type": "noul", "instructions": "Is it late?"}
CHOICE = {"type": "choice", "criteria": {"red": "warm", "blue": None}}
SCORE = {"type": "score", "criteria": ["low", "high"]}
CONTENTS: list[Any] = ["text", "", {"task": "판단"}, ["a", {"b": 1}], {}, []]


def body(question: Any = None, **changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "model": "jev-latest",
        "state": "A state.",
        "questions": {"q": NOUL if question is None else question},
    }
    return whole | changes


def refused(request: Any) -> tuple[Fault, ...]:
    with pytest.raises(InvalidRequest) as caught:
        read_evaluation(request)
    return caught.value.faults


def refused_once(request: Any) -> Fault:
    (fault,) = refused(request)
    return fault


@pytest.mark.parametrize("state", ["", "text", {}, {"a": None}, [], [1, None], {"messages": "x"}])
def test_state_is_text_or_structure_and_is_kept_as_it_is(state: Any) -> None:
    assert read_evaluation(body(state=state)).state == state


@pytest.mark.parametrize(
    ("state", "found"), [(None, "null"), (5, "the number 5"), (True, "true"), (1.5, "1.5")]
)
def test_state_of_another_kind_is_refused(state: Any, found: str) -> None:
    fault = refused_once(body(state=state))
    assert fault.loc == ("state",)
    assert found in fault.message


@pytest.mark.parametrize("field", ["model", "state", "questions"])
def test_missing_field_is_named(field: str) -> None:
    request = body()
    del request[field]
    fault = refused_once(request)
    assert (fault.type, fault.loc) == ("missing", (field,))


@pytest.mark.parametrize("model", [None, "", 5, ["jev-latest"]])
def test_model_must_be_a_non_empty_string(model: Any) -> None:
    assert refused_once(body(model=model)).loc == ("model",)


@pytest.mark.parametrize("questions", [None, [], [NOUL], "x", {}])
def test_questions_must_be_a_non_empty_object(questions: Any) -> None:
    assert refused_once(body(questions=questions)).loc == ("questions",)


def test_number_of_questions_is_limited(configure: Configure) -> None:
    configure(max_questions=2)
    fault = refused_once(body(questions=dict.fromkeys("abc", NOUL)))
    assert fault.message == "`questions` has 3 questions; 1 to 2 are allowed."
    assert len(read_evaluation(body(questions=dict.fromkeys("ab", NOUL))).questions) == 2


@pytest.mark.parametrize("identity", [" ", "a.b", "배송", "😀", "non_field_errors", "a" * 5000])
def test_any_non_empty_id_is_accepted(identity: str) -> None:
    (question,) = read_evaluation(body(questions={identity: NOUL})).questions
    assert question.id == identity


def test_empty_id_is_refused() -> None:
    fault = refused_once(body(questions={"": NOUL}))
    assert fault.loc == ("questions", "")


def test_unknown_fields_are_ignored_at_both_levels() -> None:
    question = NOUL | {"seed": 1, "trace": {"id": [1]}}
    request = read_evaluation(body(question, seed=7, assets=None, x_trace="t"))
    assert request.questions == (NoulQuestion("q", "Is it late?"),)


@pytest.mark.parametrize("assets", [{"a": {"type": "image", "part": "0"}}, ["x"], "image"])
def test_assets_with_content_are_refused_as_text_only(assets: Any) -> None:
    fault = refused_once(body(assets=assets))
    assert fault.loc == ("assets",)
    assert "text only" in fault.message


@pytest.mark.parametrize("tag", ["box", "Noul", "boolean", "", 5, None, ["noul"], {}])
def test_other_types_are_refused_naming_those_served(tag: Any) -> None:
    fault = refused_once(body(NOUL | {"type": tag}))
    assert fault.loc == ("questions", "q", "type")
    assert "'noul', 'choice' and 'score'" in fault.message
    assert "takes text only" in fault.message


@pytest.mark.parametrize("question", ["x", 5, None, [NOUL]])
def test_question_must_be_an_object(question: Any) -> None:
    assert refused_once(body(questions={"q": question})).loc == ("questions", "q")


def test_question_without_type_is_refused() -> None:
    fault = refused_once(body({"instructions": "Is it late?"}))
    assert (fault.type, fault.loc) == ("missing", ("questions", "q", "type"))


@pytest.mark.parametrize("question", [NOUL, CHOICE, SCORE])
@pytest.mark.parametrize("instructions", CONTENTS)
def test_instructions_are_text_or_structure(question: dict[str, Any], instructions: Any) -> None:
    (read,) = read_evaluation(body(question | {"instructions": instructions})).questions
    assert read.instructions == instructions


@pytest.mark.parametrize("question", [CHOICE, SCORE, NOUL | {"criteria": {"true": "late"}}])
def test_instructions_may_be_null_or_absent(question: dict[str, Any]) -> None:
    absent = {key: value for key, value in question.items() if key != "instructions"}
    for variant in (absent, absent | {"instructions": None}):
        (read,) = read_evaluation(body(variant)).questions
        assert read.instructions is None


@pytest.mark.parametrize("question", [NOUL, CHOICE, SCORE])
@pytest.mark.parametrize("instructions", [5, False, 0.5])
def test_instructions_of_another_kind_are_refused(
    question: dict[str, Any], instructions: Any
) -> None:
    fault = refused_once(body(question | {"instructions": instructions}))
    assert fault.loc == ("questions", "q", question["type"], "instructions")
    assert fault.message.startswith("Question 'q': `instructions` must be a string")


@pytest.mark.parametrize(
    ("criteria", "sides"),
    [
        (None, (None, None)),
        ({}, (None, None)),
        ({"true": "late", "false": "in time"}, ("late", "in time")),
        ({"true": "late"}, ("late", None)),
        ({"false": {"rule": 1}}, (None, {"rule": 1})),
        ({"true": None, "false": ["a"]}, (None, ["a"])),
        ({"true": None, "false": None}, (None, None)),
        ({"true": "", "maybe": "ignored"}, ("", None)),
    ],
)
def test_noul_criteria_may_be_absent_null_or_one_sided(criteria: Any, sides: Any) -> None:
    (read,) = read_evaluation(body(NOUL | {"criteria": criteria})).questions
    assert isinstance(read, NoulQuestion)
    assert (read.true, read.false) == sides


@pytest.mark.parametrize("criteria", ["x", ["a", "b"], 5, {"yes": "late", "no": "in time"}])
def test_noul_criteria_of_another_kind_are_refused(criteria: Any) -> None:
    fault = refused_once(body(NOUL | {"criteria": criteria}))
    assert fault.loc == ("questions", "q", "noul", "criteria")
    assert "`true`, `false` or both" in fault.message


def test_noul_side_of_another_kind_is_refused() -> None:
    fault = refused_once(body(NOUL | {"criteria": {"true": 1, "false": None}}))
    assert fault.loc == ("questions", "q", "noul", "criteria", "true")


@pytest.mark.parametrize("rest", [{}, {"criteria": None}, {"criteria": {"true": None}}])
def test_noul_that_asks_nothing_is_refused(rest: dict[str, Any]) -> None:
    fault = refused_once(body({"type": "noul", "instructions": None, **rest}))
    assert fault.loc == ("questions", "q", "noul")
    assert "Question 'q'" in fault.message


def test_choice_descriptions_may_be_null_empty_or_structured_and_keep_their_order() -> None:
    options = {"z": None, "a": "", "ㅁ": {"rule": [1]}, " ": ["x"]}
    (read,) = read_evaluation(body({"type": "choice", "criteria": options})).questions
    assert isinstance(read, ChoiceQuestion)
    assert list(read.options.items()) == list(options.items())


@pytest.mark.parametrize("count", [0, 1, 65])
@pytest.mark.parametrize("tag", ["choice", "score"])
def test_number_of_answers_is_limited(tag: str, count: int) -> None:
    entries = [f"o{index}" for index in range(count)]
    criteria: Any = dict.fromkeys(entries) if tag == "choice" else entries
    fault = refused_once(body({"type": tag, "criteria": criteria}))
    assert fault.loc == ("questions", "q", tag, "criteria")
    assert "2 to 64 are allowed" in fault.message
    assert str(count) in fault.message


@pytest.mark.parametrize("count", [2, 64, 255])
def test_number_of_answers_allowed_comes_from_the_settings(
    configure: Configure, count: int
) -> None:
    configure(max_answers=255)
    options = {f"o{index}": None for index in range(count)}
    (choice,) = read_evaluation(body({"type": "choice", "criteria": options})).questions
    (score,) = read_evaluation(body({"type": "score", "criteria": list(options)})).questions
    assert isinstance(choice, ChoiceQuestion)
    assert isinstance(score, ScoreQuestion)
    assert len(choice.options) == len(score.levels) == count


@pytest.mark.parametrize("criteria", [None, ["a", "b"], "x", 5])
def test_choice_criteria_must_be_an_object(criteria: Any) -> None:
    fault = refused_once(body({"type": "choice", "criteria": criteria}))
    assert fault.loc == ("questions", "q", "choice", "criteria")


def test_bad_options_are_named() -> None:
    faults = refused(body({"type": "choice", "criteria": {"a": 1, "": "x", "c": None, "d": True}}))
    assert [fault.loc[-1] for fault in faults] == ["a", "", "d"]


@pytest.mark.parametrize("criteria", [None, {"0": "a", "1": "b"}, "x"])
def test_score_criteria_must_be_an_array(criteria: Any) -> None:
    fault = refused_once(body({"type": "score", "criteria": criteria}))
    assert fault.loc == ("questions", "q", "score", "criteria")


def test_score_levels_are_text_or_structure_but_not_null() -> None:
    levels: list[Any] = ["", {"a": 1}, ["x"]]
    (read,) = read_evaluation(body({"type": "score", "criteria": levels})).questions
    assert isinstance(read, ScoreQuestion)
    assert list(read.levels) == levels
    faults = refused(body({"type": "score", "criteria": ["low", None, 3]}))
    assert [fault.loc[-1] for fault in faults] == [1, 2]


def test_every_fault_of_a_request_is_reported_at_once() -> None:
    request = {
        "model": "",
        "state": [{"role": 5, "content": "x"}, {"role": "user", "content": [{"type": "image"}]}],
        "questions": {
            "a": {"type": "noul"},
            "b": {"type": "choice", "instructions": 1, "criteria": []},
            "c": {"type": "box"},
        },
        "assets": ["x"],
    }
    locs = {fault.loc for fault in refused(request)}
    assert {
        ("model",),
        ("questions", "a", "noul"),
        ("questions", "b", "choice", "instructions"),
        ("questions", "b", "choice", "criteria"),
        ("questions", "c", "type"),
        ("assets",),
    } <= locs
    assert sum(loc[0] == "state" for loc in locs) == 2


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video"])
def test_parts_that_are_no_text_are_refused_naming_message_and_part(kind: str) -> None:
    parts = [{"type": "text", "text": "Look:"}, {"type": kind, kind: {}}]
    state = [{"role": "user", "content": "Hi"}, {"role": "user", "content": parts}]
    fault = refused_once(body(state={"messages": state}))
    assert fault.loc[:3] == ("state", "messages", 1)
    assert "Message 1" in fault.message
    assert kind in fault.message
    assert "text only" in fault.message


def test_long_names_are_cut_in_sentences() -> None:
    long = "x" * 10_000
    question = {"type": "choice", "criteria": {long: 5, "b": None}}
    fault = refused_once(body(questions={long: question}))
    assert len(fault.message) < 400
    assert fault.loc == ("questions", long, "choice", "criteria", long)  # cut when rendered
    wordy = refused_once(body({"type": long}))
    assert len(wordy.message) < 400
    assert len(wordy.input) < 100


def test_input_of_a_fault_is_short() -> None:
    assert refused_once(body(state=5)).input == 5
    assert refused_once(body(model=[1] * 1000)).input == "an array of 1000 items"
    huge = refused_once(body(state=10**400)).input
    assert isinstance(huge, str)
    assert len(huge) < 100


@pytest.mark.parametrize("request_body", [None, 5, "x", [body()], True])
def test_body_must_be_an_object(request_body: Any) -> None:
    assert refused_once(request_body).loc == ()
