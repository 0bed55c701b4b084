"""Question suffixes, written and encoded once where they come again."""

import pytest

from backend.tokenizer import TooManyTokens
from evaluations.labels import CANDIDATES
from evaluations.question_text import option_count, question_text
from evaluations.questions import ChoiceQuestion, NoulQuestion, ScoreQuestion
from evaluations.suffixes import MAX_CHARACTERS, Suffixes
from evaluations.wording import DEFAULT_WORDING as W

MARKER = "Answer:"
LONG = "x" * (MAX_CHARACTERS + 1)
ALL_DIFFERENT = [
    NoulQuestion("q"),
    NoulQuestion("q", "a"),
    NoulQuestion("q", "a", "b"),
    NoulQuestion("q", "a", None, "b"),
    ChoiceQuestion("q", {"a": None, "b": None}),
    ChoiceQuestion("q", {"b": None, "a": None}),
    ChoiceQuestion("q", {"a": "b", "b": None}),
    ChoiceQuestion("q", {"a": None, "b": None}, "a"),
    ScoreQuestion("q", ("a", "b")),
    ScoreQuestion("q", ("b", "a")),
    ScoreQuestion("q", ("a", "b"), "a"),
    # the same texts in each kind
    NoulQuestion("q", "a", "a", "b"),
    ChoiceQuestion("q", {"a": "b", "c": "d"}),
    ScoreQuestion("q", ("a", "b", "c", "d")),
]


class Counting:
    """A tokenizer that counts how often it is asked."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.asked = 0

    def encode(self, pieces, *, limit=None):
        self.asked += 1
        return self.tokenizer.encode(pieces, limit=limit)


@pytest.fixture
def counting(tiny_tokenizer):
    return Counting(tiny_tokenizer)


def remembering(tokenizer):
    return Suffixes(tokenizer, W, MARKER, first)


def first(count):
    return CANDIDATES[:count]


def written(question, end, tokenizer):
    labels = first(option_count(question))
    return tokenizer.encode([question_text(question, W, labels), *end, MARKER])


def test_a_suffix_is_encoded_once_whatever_the_question_is_called(counting, tiny_tokenizer):
    suffixes = remembering(counting)
    end = (min(tiny_tokenizer.control_ids), "\n")
    question = NoulQuestion("q", "Is it so?")
    ids = suffixes.encode(question, end, limit=100)
    assert suffixes.encode(question._replace(id="other"), end, limit=100) == ids
    assert list(ids) == written(question, end, tiny_tokenizer)
    assert counting.asked == 1


def test_whatever_is_shown_makes_another_suffix(counting, tiny_tokenizer):
    suffixes = remembering(counting)
    found = [suffixes.encode(question, (), limit=100) for question in ALL_DIFFERENT]
    assert counting.asked == len(ALL_DIFFERENT)
    assert [list(ids) for ids in found] == [written(q, (), tiny_tokenizer) for q in ALL_DIFFERENT]


def test_the_end_of_the_turn_makes_another_suffix(counting, tiny_tokenizer):
    suffixes = remembering(counting)
    control = min(tiny_tokenizer.control_ids)
    for end in ((control,), (str(control),), (control, "\n")):
        ids = suffixes.encode(ALL_DIFFERENT[0], end, limit=100)
        assert list(ids) == written(ALL_DIFFERENT[0], end, tiny_tokenizer)
    assert counting.asked == 3


@pytest.mark.parametrize(
    ("question", "end"),
    [
        (NoulQuestion("q", LONG), ()),
        (NoulQuestion("q", {"structured": "content"}), ()),
        (NoulQuestion(LONG, "Is it so?"), ()),
        (NoulQuestion("q", "Is it so?"), (LONG,)),
    ],
    ids=["text", "structure", "id", "end of the turn"],
)
def test_nothing_long_or_structured_is_kept(counting, question, end):
    suffixes = remembering(counting)
    for _ in range(2):
        suffixes.encode(question, end, limit=10**6)
    assert counting.asked == 2


def test_a_long_suffix_far_over_the_limit_is_given_up(tiny_tokenizer):
    with pytest.raises(TooManyTokens):
        remembering(tiny_tokenizer).encode(
            NoulQuestion("q", "a b " * MAX_CHARACTERS), (), limit=100
        )
