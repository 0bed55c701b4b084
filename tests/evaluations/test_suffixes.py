"""Question suffixes, encoded once where they come again."""

import pytest

from backend.tokenizer import TooManyTokens
from evaluations.suffixes import MAX_CHARACTERS, Suffixes


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


def test_a_suffix_is_encoded_once(counting, tiny_tokenizer):
    suffixes = Suffixes(counting)
    control = min(tiny_tokenizer.control_ids)
    pieces = ("Is it so?", control, "Answer:")
    first = suffixes.encode(pieces, limit=100)
    assert suffixes.encode(list(pieces), limit=100) == first
    assert list(first) == tiny_tokenizer.encode(pieces)
    assert counting.asked == 1


@pytest.mark.parametrize("other", [("Is it so!", "Answer:"), ("Is it so?", "Answer: [")])
def test_any_other_text_is_another_suffix(counting, tiny_tokenizer, other):
    suffixes = Suffixes(counting)
    suffixes.encode(("Is it so?", "Answer:"), limit=100)
    assert list(suffixes.encode(other, limit=100)) == tiny_tokenizer.encode(other)
    assert counting.asked == 2


def test_a_control_token_is_not_its_own_number(counting, tiny_tokenizer):
    suffixes = Suffixes(counting)
    control = min(tiny_tokenizer.control_ids)
    as_text = suffixes.encode((str(control),), limit=100)
    assert as_text != suffixes.encode((control,), limit=100)


def test_a_long_suffix_is_not_kept(counting):
    suffixes = Suffixes(counting)
    for _ in range(2):
        suffixes.encode(("x" * (MAX_CHARACTERS + 1),), limit=10**6)
    assert counting.asked == 2


def test_a_long_suffix_far_over_the_limit_is_given_up(tiny_tokenizer):
    with pytest.raises(TooManyTokens):
        Suffixes(tiny_tokenizer).encode(("a b " * MAX_CHARACTERS,), limit=100)
