"""The labels options are answered by: letters or pairs of letters, proven to be single tokens.

Pure: encoding is passed in. A label that merges with what stands before it would silently score
the wrong token, so each is checked at the real end of a rendered prompt. Letters and pairs are not
mixed in one question where that can be helped: a model prefers letters, whatever they stand for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

LETTERS = len(ascii_uppercase)
CANDIDATES: tuple[str, ...] = (
    *ascii_uppercase,
    *(first + second for first in ascii_uppercase for second in ascii_uppercase),
)
"""All label texts, in the order in which they are given out."""


@dataclass(frozen=True, slots=True)
class Label:
    """One label.

    Attributes:
        text: as the options show it.
        token_id: the one token it is answered with.
    """

    text: str
    token_id: int


def verified_labels(
    prompt_end: str,
    label_prefix: str,
    count: int,
    *,
    encode_texts: Callable[[Sequence[str]], list[list[int]]],
    decode: Callable[[Sequence[int]], str],
) -> tuple[Label, ...]:
    """Find the first labels that are exactly one token of their own right after the prompt.

    Args:
        prompt_end: the text before the answer, from the last control token on.
        label_prefix: what stands between it and the label: a space, or nothing.
        count: labels wanted.
        encode_texts: encodes texts as plain text.
        decode: gives the text of token ids.

    Returns:
        At most `count` labels, in candidate order; fewer where the tokenizer has no more.
    """
    texts = [prompt_end, *(prompt_end + label_prefix + text for text in CANDIDATES)]
    before, *encoded = encode_texts(texts)
    labels: list[Label] = []
    taken: set[int] = set()
    for text, ids in zip(CANDIDATES, encoded, strict=True):
        if len(labels) == count:
            break
        is_one_token = len(ids) == len(before) + 1 and ids[:-1] == before
        if is_one_token and ids[-1] not in taken and decode(ids[-1:]) == label_prefix + text:
            labels.append(Label(text, ids[-1]))
            taken.add(ids[-1])
    return tuple(labels)


def labels_for(labels: Sequence[Label], count: int) -> Sequence[Label]:
    """Choose the labels of one question.

    Args:
        labels: all that are verified, in candidate order.
        count: options of the question; at most as many.

    Returns:
        Letters if there are enough, else pairs if there are enough, else letters and pairs.
    """
    letters = [label for label in labels if len(label.text) == 1]
    if count <= len(letters):
        return letters[:count]
    pairs = labels[len(letters) :]
    return (pairs if count <= len(pairs) else labels)[:count]
