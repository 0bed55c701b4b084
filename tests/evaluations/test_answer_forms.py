import logging
import math
from dataclasses import replace
from pathlib import Path

import pytest

from backend.chat_template import ChatTemplate
from backend.config import Config
from backend.errors import SetupError, TokenizerError
from backend.tokenizer import ChatTokenizer
from backend.vocabulary import vocabulary_from_gguf
from evaluations.answer_forms import candidates, choose_readout, prove_boundary
from evaluations.readout import Readout
from evaluations.wording import DEFAULT_WORDING, Wording
from tests.support.stand_in import Call, StandIn

MASS = {"bracketed": 0.7, "spaced": 0.1, "bare": 0.1}
MARKERS = {"bracketed": "Answer: [", "spaced": "Answer:", "bare": "Answer:\n"}


def engine(tokenizer: ChatTokenizer, **mass: float) -> StandIn:
    """An engine that puts the given masses on the two labels of each form."""

    async def answer(call: Call) -> tuple[float, ...]:
        text = tokenizer.decode(call.input_ids)
        (form,) = [name for name, marker in MARKERS.items() if text.endswith(marker)]
        return (math.log(mass[form] * 0.75), math.log(mass[form] * 0.25))

    return StandIn(answer)


async def choose(
    tokenizer: ChatTokenizer, config: Config, wording: Wording = DEFAULT_WORDING, **mass: float
) -> Readout:
    found = candidates(tokenizer, count=config.max_answers, wording=wording)
    client = engine(tokenizer, **mass)
    return await choose_readout(found, tokenizer, client, config, deadline=1e9, wording=wording)


@pytest.mark.parametrize(
    ("mass", "form", "first"),
    [
        ({"bracketed": 0.002, "spaced": 0.7, "bare": 0.1}, "spaced", " A"),
        ({"bracketed": 0.002, "spaced": 0.1, "bare": 0.7}, "bare", "A"),
        ({"bracketed": 0.7, "spaced": 0.1, "bare": 0.002}, "bracketed", "A"),
        ({"bracketed": 0.4, "spaced": 0.7, "bare": 0.002}, "bracketed", "A"),
        ({"bracketed": 0.3, "spaced": 0.7, "bare": 0.002}, "spaced", " A"),
    ],
)
async def test_form_the_model_answers_in_is_taken_and_all_are_logged(
    tiny_tokenizer: ChatTokenizer,
    config: Config,
    caplog: pytest.LogCaptureFixture,
    mass: dict[str, float],
    form: str,
    first: str,
) -> None:
    caplog.set_level(logging.INFO)
    chosen = await choose(tiny_tokenizer, config, **mass)
    assert chosen.marker == MARKERS[form]
    assert tiny_tokenizer.decode(chosen.label_ids(1)) == first
    assert chosen.label_mass == pytest.approx(mass[form])
    assert all(str(number) in caplog.text for number in mass.values())


async def test_form_without_enough_labels_is_not_asked_for(
    tiny_tokenizer: ChatTokenizer, config: Config
) -> None:
    found = candidates(tiny_tokenizer, count=config.max_answers)[1:]
    client = engine(tiny_tokenizer, spaced=0.2, bare=0.3)
    chosen = await choose_readout(found, tiny_tokenizer, client, config, deadline=1e9)
    assert chosen.marker == MARKERS["bare"]


async def test_a_limit_that_holds_not_even_a_simple_question_is_named(
    tiny_tokenizer: ChatTokenizer, config: Config
) -> None:
    with pytest.raises(SetupError, match=r"OPENJEV_MAX_INPUT_TOKENS is 64, but .*\. Raise it\."):
        await choose(tiny_tokenizer, replace(config, max_input_tokens=64), **MASS)


async def test_probe_asks_at_the_end_of_a_real_prompt(
    tiny_tokenizer: ChatTokenizer, config: Config
) -> None:
    client = engine(tiny_tokenizer, bracketed=0.5, spaced=0.5, bare=0.5)
    found = candidates(tiny_tokenizer, count=config.max_answers)
    await choose_readout(found, tiny_tokenizer, client, config, deadline=5.0)
    texts = [tiny_tokenizer.decode(call.input_ids) for call in client.calls]
    for text, marker in zip(texts, MARKERS.values(), strict=True):
        assert text.endswith("<|im_end|>\n<|im_start|>assistant\n" + marker)
    assert {call.deadline for call in client.calls} == {5.0}


async def test_model_that_never_answers_with_labels_is_refused(
    tiny_tokenizer: ChatTokenizer, config: Config
) -> None:
    with pytest.raises(TokenizerError, match="next to none"):
        await choose(tiny_tokenizer, config, bracketed=1e-8, spaced=1e-9, bare=1e-7)


async def test_random_model_is_accepted_with_a_warning(
    tiny_tokenizer: ChatTokenizer, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    uniform = 2 / tiny_tokenizer.vocabulary_size
    await choose(
        tiny_tokenizer, config, bracketed=uniform / 6, spaced=uniform / 5, bare=uniform / 9
    )
    assert "expect noise" in caplog.text


async def test_version_names_everything_that_shapes_a_probability(
    tiny_gguf: Path, tiny_tokenizer: ChatTokenizer, config: Config
) -> None:
    base = await choose(tiny_tokenizer, config, **MASS)
    again = await choose(tiny_tokenizer, config, bracketed=0.6, spaced=0.2, bare=0.1)
    assert again.version == base.version
    assert len(base.version) == 12
    vocabulary = vocabulary_from_gguf(tiny_gguf)
    source = vocabulary.template.source.replace("You are Tiny.", "You are Small.")
    other_template = ChatTokenizer(replace(vocabulary, template=ChatTemplate(source, {})))
    others = [
        await choose(tiny_tokenizer, config, bracketed=0.1, spaced=0.1, bare=0.7),
        await choose(tiny_tokenizer, replace(config, model="other/model"), **MASS),
        await choose(tiny_tokenizer, replace(config, profile="qwen36"), **MASS),
        await choose(tiny_tokenizer, replace(config, revision="main"), **MASS),
        await choose(tiny_tokenizer, replace(config, max_answers=60), **MASS),
        await choose(tiny_tokenizer, replace(config, temperature=2.0), **MASS),
        await choose(
            tiny_tokenizer,
            config,
            replace(DEFAULT_WORDING, yes="Yes, indeed"),
            **MASS,
        ),
        await choose(other_template, config, **MASS),
    ]
    assert len({base.version, *(other.version for other in others)}) == len(others) + 1


def test_tokenizer_with_too_few_labels_is_refused_by_name(
    tiny_gguf: Path, tiny_tokenizer: ChatTokenizer
) -> None:
    with pytest.raises(TokenizerError) as refused:
        candidates(tiny_tokenizer, count=287)
    assert str(tiny_gguf) in str(refused.value)
    assert "at most 286" in str(refused.value)


def test_full_number_of_labels_is_found(tiny_tokenizer: ChatTokenizer) -> None:
    for candidate in candidates(tiny_tokenizer, count=255):
        assert len(candidate.labels) >= 255


def test_wording_that_merges_with_the_question_is_refused(tiny_tokenizer: ChatTokenizer) -> None:
    # without the line break, the task's last "J" and the question's "A" are one token
    wording = replace(DEFAULT_WORDING, task="J", question="A")
    with pytest.raises(TokenizerError, match="merges the end of the task"):
        prove_boundary(tiny_tokenizer, wording)
