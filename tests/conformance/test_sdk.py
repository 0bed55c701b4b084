"""What the official Python SDK sends is answered in a form that it reads."""

import math
from typing import Any, Literal

import pytest
from typesafe_sdk import Choice, Noul, Score

from tests.conformance.official import KINDS, Kind, official
from tests.support.served import Served

pytestmark = [pytest.mark.conformance, pytest.mark.process]

STATE = "The parcel arrived broken. I would like a new one."
LEVELS = ["Calm", {"mood": "annoyed", "signs": ["!!"]}, ["angry", 2], ""]
OPTIONS = {"환불": None, "new parcel": "", "other 🙂": {"what": ["advice"]}, "none": ["nothing"]}
QUESTIONS: dict[str, Any] = {
    "noul": Noul(instructions="Is the parcel broken?"),
    "noul, both sides": Noul(instructions="Broken?", criteria={"true": "It is.", "false": "No."}),
    "noul, one side": Noul(criteria={"true": {"signs": ["broken", "cracked"]}}),
    "noul, other side": Noul(instructions=["Broken?"], criteria={"true": None, "false": ["fine"]}),
    "noul, raw": {"type": "noul", "instructions": "Broken?", "criteria": None},
    "noul, raw one side": {"type": "noul", "instructions": None, "criteria": {"false": ""}},
    "choice": Choice(instructions={"task": "Choose."}, criteria=OPTIONS),
    "choice, raw": {"type": "choice", "instructions": None, "criteria": {"a": None, "b": None}},
    "score": Score(instructions=["How angry?", {"scale": 4}], criteria=LEVELS),
    "score, raw": {"type": "score", "instructions": None, "criteria": ["low", "high"]},
    "질문.1 🎯": Noul(instructions="깨졌나요?"),
}
CHAT = [
    {"role": "system", "content": "You sell parcels."},
    {"role": "user", "content": [{"type": "text", "text": "It is broken."}]},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look_up"}}]},
    {"role": "tool", "content": "Parcel 7: delivered"},
    {"role": "user", "content": "I want a new one."},
]
STATES = {
    "text": STATE,
    "empty text": "",
    "object": {"subject": "소포", "parcels": [{"id": 7, "broken": True, "weight": None}]},
    "array": ["broken", 7, None, {"a": []}],
    "empty object": {},
    "chat": CHAT,
    "chat in an object": {"messages": CHAT},
    "chat with data": {"messages": CHAT, "customer": 7},
}


@pytest.mark.parametrize("compression", ["zstd", False])
@pytest.mark.parametrize("kind", KINDS)
async def test_every_type_and_form_of_question_is_answered(
    default_product: Served, kind: Kind, compression: Literal["zstd", False]
) -> None:
    async with official(kind, default_product.url, compression=compression) as sdk:
        result = await sdk.ask(STATE, QUESTIONS)
    assert list(result.answers) == list(QUESTIONS)
    assert all(0 <= answer.noul <= 1 for answer in result.nouls.values())
    choice, score = result.choices["choice"], result.scores["score"]
    assert list(choice.probabilities) == list(OPTIONS)
    assert choice.choice == max(OPTIONS, key=lambda option: choice.probabilities[option])
    assert score.legend == dict(enumerate(LEVELS))
    assert math.isclose(score.score, sum(i * p for i, p in score.probabilities.items()))
    for answer in (*result.choices.values(), *result.scores.values()):
        assert math.isclose(sum(answer.probabilities.values()), 1)
        assert 0 <= answer.confidence <= 1
    assert len(result.nouls) + len(result.choices) + len(result.scores) == len(QUESTIONS)
    assert result.model == "jev-latest"
    assert result.usage.input_tokens
    assert result.usage.output_tokens == len(QUESTIONS) + 1
    assert result.request_id
    assert result.request_id.startswith("req_")


@pytest.mark.parametrize("kind", KINDS)
async def test_compression_changes_the_body_and_not_the_answer(
    default_product: Served, kind: Kind
) -> None:
    answers = {}
    for compression, coding in (("zstd", "zstd"), (None, "zstd"), (False, None)):
        async with official(kind, default_product.url, compression=compression) as sdk:
            answers[compression] = (await sdk.ask(STATE * 40, QUESTIONS)).nouls["noul"].noul
        assert sdk.sent[0].headers.get("Content-Encoding") == coding
    assert answers["zstd"] == pytest.approx(answers[False], abs=1e-5)
    assert answers[None] == pytest.approx(answers[False], abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_form_of_state_is_read(default_product: Served, kind: Kind) -> None:
    read: dict[str, tuple[int | None, float]] = {}
    async with official(kind, default_product.url) as sdk:
        for name, state in STATES.items():
            result = await sdk.ask(state, {"q": Noul(instructions="Is something broken?")})
            read[name] = (result.usage.input_tokens, result.nouls["q"].noul)
    assert read["chat in an object"] == pytest.approx(read["chat"], abs=1e-5)
    others = {name: answer for name, answer in read.items() if name != "chat in an object"}
    assert len(set(others.values())) == len(others), "two states look the same to the model"


@pytest.mark.parametrize("kind", KINDS)
async def test_models_are_listed_and_every_listed_name_answers(
    default_product: Served, kind: Kind
) -> None:
    async with official(kind, default_product.url) as sdk:
        names = [model.name for model in (await sdk.models()).models]
        assert names == ["jev-latest", "tiny/random"]
        for name in [*names, "jev-preview"]:
            result = await sdk.ask(STATE, {"q": Noul(instructions="Broken?")}, model=name)
            assert result.model == name


@pytest.mark.parametrize("kind", KINDS)
async def test_fields_of_other_servers_are_ignored(default_product: Served, kind: Kind) -> None:
    question = {"q": {"type": "noul", "instructions": "Broken?", "weight": 2}}
    extra = {"seed": 7, "assets": None, "trace": {"id": "x"}}
    async with official(kind, default_product.url) as sdk:
        plain = await sdk.ask(STATE, {"q": Noul(instructions="Broken?")})
        decorated = await sdk.ask(STATE, question, extra_body=extra)
    assert decorated.nouls["q"].noul == pytest.approx(plain.nouls["q"].noul, abs=1e-5)
