import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluations.questions import (
    ChoiceAnswer,
    ChoiceQuestion,
    NoulAnswer,
    NoulQuestion,
    ScoreAnswer,
    ScoreQuestion,
)
from evaluations.scoring import (
    answer_from,
    entropy_confidence,
    expected_level,
    softmax,
    typesafe_choice_confidence,
    typesafe_score_confidence,
)

LOGPROBS = st.lists(st.floats(-1e6, 0), min_size=2, max_size=255)
PROBABILITIES = LOGPROBS.map(softmax)


@pytest.mark.parametrize(
    ("probabilities", "recorded"),
    [
        ((0, 0.18, 0.82), 0.73),
        ((0.07, 0.56, 0.09, 0.07, 0.07, 0.14), 0.47),
        ((0.71, 0.06, 0.23), 0.57),
    ],
)
def test_choice_confidence_reproduces_the_hosted_service(
    probabilities: tuple[float, ...], recorded: float
) -> None:
    assert typesafe_choice_confidence(probabilities) == pytest.approx(recorded, abs=0.0101)


@pytest.mark.parametrize(
    ("probabilities", "recorded"),
    [
        ((0, 0.25, 0.75), 0.62),
        ((0, 0.05, 0.47, 0.48), 0.43),
        ((0.02, 0.64, 0.34), 0.46),
        ((0.43, 0.05, 0.13, 0.39), 0),
    ],
)
def test_score_confidence_reproduces_the_hosted_service(
    probabilities: tuple[float, ...], recorded: float
) -> None:
    assert typesafe_score_confidence(probabilities) == pytest.approx(recorded, abs=0.0101)


@given(LOGPROBS, st.floats(0.01, 100))
def test_probabilities_sum_to_one_and_keep_the_order_of_the_logprobs(
    logprobs: list[float], temperature: float
) -> None:
    probabilities = softmax(logprobs, temperature)
    assert math.isclose(math.fsum(probabilities), 1, abs_tol=1e-12)
    assert all(0 <= p <= 1 for p in probabilities)
    assert probabilities[logprobs.index(max(logprobs))] == max(probabilities)


def test_softmax_equals_the_renormalised_probabilities() -> None:
    logprobs = [math.log(0.2), math.log(0.1), math.log(0.1)]
    assert softmax(logprobs) == pytest.approx((0.5, 0.25, 0.25), abs=1e-15)


def test_temperature_evens_out_and_sharpens() -> None:
    logprobs = [math.log(0.8), math.log(0.2)]
    assert softmax(logprobs, 2.0) == pytest.approx((2 / 3, 1 / 3))
    assert softmax(logprobs, 0.5) == pytest.approx((16 / 17, 1 / 17))


@pytest.mark.parametrize("logprobs", [[], [math.nan, 0.0], [-math.inf, 0.0], [math.inf, 0.0]])
def test_no_probability_is_made_of_what_is_no_number(logprobs: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        softmax(logprobs)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_temperature_must_be_positive(temperature: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        softmax([0.0, -1.0], temperature)


@given(PROBABILITIES)
def test_every_confidence_is_between_zero_and_one(probabilities: tuple[float, ...]) -> None:
    for measure in (entropy_confidence, typesafe_choice_confidence, typesafe_score_confidence):
        assert 0 <= measure(probabilities) <= 1


@pytest.mark.parametrize("count", [2, 3, 64, 255])
def test_entropy_confidence_is_zero_for_an_even_distribution_and_one_for_certainty(
    count: int,
) -> None:
    assert entropy_confidence([1 / count] * count) == pytest.approx(0, abs=1e-12)
    assert entropy_confidence([1.0, *[0.0] * (count - 1)]) == 1


def test_expected_level_weighs_levels_by_probability() -> None:
    assert expected_level((0.1, 0.2, 0.7)) == pytest.approx(1.6)


def test_noul_is_the_probability_of_the_first_label() -> None:
    answer = answer_from(
        NoulQuestion("q", "?"),
        [math.log(0.3), math.log(0.1)],
        temperature=1.0,
        method="entropy",
    )
    assert answer == NoulAnswer(pytest.approx(0.75))


def test_choice_keeps_the_order_of_the_options_and_names_the_most_probable() -> None:
    question = ChoiceQuestion("q", {"z": None, "a": "first", "m": ""})
    logprobs = [math.log(0.2), math.log(0.5), math.log(0.3)]
    answer = answer_from(question, logprobs, temperature=1.0, method="typesafe")
    assert isinstance(answer, ChoiceAnswer)
    assert list(answer.probabilities) == ["z", "a", "m"]
    assert answer.choice == "a"
    assert answer.confidence == pytest.approx(0.25)
    by_entropy = answer_from(question, logprobs, temperature=1.0, method="entropy")
    assert isinstance(by_entropy, ChoiceAnswer)
    assert by_entropy.confidence == pytest.approx(0.0627, abs=1e-4)


def test_score_carries_levels_unchanged_and_the_expected_level() -> None:
    question = ScoreQuestion("q", ("low", {"name": "middle"}, ["high"]))
    logprobs = [math.log(0.0001), math.log(0.25), math.log(0.75)]
    answer = answer_from(question, logprobs, temperature=1.0, method="typesafe")
    assert isinstance(answer, ScoreAnswer)
    assert answer.legend == question.levels
    assert answer.score == pytest.approx(1.75, abs=1e-3)
    assert answer.confidence == pytest.approx(0.625, abs=1e-3)
    by_entropy = answer_from(question, logprobs, temperature=1.0, method="entropy")
    assert isinstance(by_entropy, ScoreAnswer)
    assert by_entropy.confidence == pytest.approx(0.488, abs=1e-3)


def test_each_option_needs_its_logprob() -> None:
    with pytest.raises(ValueError, match="argument"):
        answer_from(
            ChoiceQuestion("q", {"a": None, "b": None, "c": None}),
            [0.0, 0.0],
            temperature=1.0,
            method="entropy",
        )
