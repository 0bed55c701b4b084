from collections.abc import Sequence

import pytest

from backend.tokenizer import ChatTokenizer
from evaluations.labels import CANDIDATES, Label, labels_for, verified_labels


def found(tokenizer: ChatTokenizer, end: str, prefix: str, count: int) -> tuple[Label, ...]:
    return verified_labels(
        end, prefix, count, encode_texts=tokenizer.encode_texts, decode=tokenizer.decode
    )


def test_letters_come_before_pairs() -> None:
    assert CANDIDATES[:3] == ("A", "B", "C")
    assert CANDIDATES[25:28] == ("Z", "AA", "AB")
    assert CANDIDATES[-1] == "ZZ"
    assert len(set(CANDIDATES)) == len(CANDIDATES) == 26 + 26 * 26


@pytest.mark.parametrize(("end", "prefix"), [("assistant\nAnswer:", " "), ("x\nAnswer:\n", "")])
def test_labels_are_one_token_at_the_end_of_the_prompt(
    tiny_tokenizer: ChatTokenizer, end: str, prefix: str
) -> None:
    labels = found(tiny_tokenizer, end, prefix, 255)
    assert len(labels) == 255
    assert len({label.token_id for label in labels}) == 255
    for label in labels:
        whole = tiny_tokenizer.encode_texts([end, end + prefix + label.text])
        assert whole[1] == [*whole[0], label.token_id]
        assert tiny_tokenizer.decode([label.token_id]) == prefix + label.text


def test_labels_the_tokenizer_has_no_token_for_are_passed_over(
    tiny_tokenizer: ChatTokenizer,
) -> None:
    labels = [label.text for label in found(tiny_tokenizer, "Answer:", " ", 1000)]
    assert labels == [text for text in CANDIDATES if len(text) == 1 or text[0] in "ABCDEFGHIJ"]


def test_label_that_merges_with_the_marker_is_not_used(tiny_tokenizer: ChatTokenizer) -> None:
    # "J" and "A" are the token "JA", so that after "J" no "A" begins
    texts = [label.text for label in found(tiny_tokenizer, "J", "", 26)]
    assert "A" not in texts


def test_label_that_does_not_come_back_or_is_taken_is_not_used() -> None:
    def encode_texts(texts: Sequence[str]) -> list[list[int]]:
        return [[0], *([0, min(n, 3)] for n in range(1, len(texts)))]

    def decode(ids: Sequence[int]) -> str:
        return {1: "A", 2: "other", 3: "C"}[ids[0]]

    labels = verified_labels("end", "", 5, encode_texts=encode_texts, decode=decode)
    assert labels == (Label("A", 1), Label("C", 3))


def test_letters_and_pairs_are_not_mixed_where_that_can_be_helped() -> None:
    labels = [Label(text, number) for number, text in enumerate(CANDIDATES[: 26 + 30])]
    assert labels_for(labels, 2) == labels[:2]
    assert labels_for(labels, 26) == labels[:26]
    assert labels_for(labels, 27) == labels[26:53]
    assert labels_for(labels, 30) == labels[26:]
    assert labels_for(labels, 31) == labels[:31]
