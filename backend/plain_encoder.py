"""Encodes plain text, with a faster implementation where one is installed and agrees.

`fastokens` (requirements-fast.txt) encodes about ten times as fast as `tokenizers`, whose results
are what counts: before it is used, both encode the same few thousand texts, and a single difference
rules it out. Nothing here knows control tokens: the tokenizer that comes in has none.
"""

import logging
import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tokenizers import Tokenizer

logger = logging.getLogger(__name__)

Encode: TypeAlias = Callable[[Sequence[str]], list[list[int]]]
"""Texts in, their token ids out; long ones let other threads run meanwhile."""

PROBES = 2000
_LONGEST_PROBE = 40
_SEED = 20261130
# Letters, digits, spaces, punctuation and marks of many scripts: what pre-tokenisers tell apart.
_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz ",
    "ABCDEFG xyz'",
    "0123456789 .,",
    " \t\n\r\u00a0\u3000",
    "!?.,;:-_()[]{}<>|/\\'\"`~@#$%^&*+=",
    "éàüßñøœ e\u0301n\u0303",
    "АБВгдеё іїє",
    "αβγδς ΆΈ",
    "你好世界，。「」한국어にほんごカナ",
    "العربية עברית हिन्दी ไทย",
    "🙂👍🏽\u200d👩❤️🇩🇪",
    "\u200b\ufeff\u0000\u007f",
)


def plain_encoder(tokenizer: Tokenizer, name: str) -> Encode:
    """Choose how to encode plain text.

    Args:
        tokenizer: knows no control tokens; says what is right.
        name: of the tokenizer, for the log.
    """
    fast = _fastokens(tokenizer)
    if fast is None:
        return _exact(tokenizer)
    probes = list(probe_texts())
    try:
        agree = fast(probes) == _exact(tokenizer)(probes)
    except Exception:  # another implementation may fail in any way
        agree = False
    if not agree:
        logger.warning("fastokens does not encode as the tokenizer of %s does; not used.", name)
        return _exact(tokenizer)
    logger.info("Encoding with fastokens, which agrees on %d texts.", len(probes))
    return fast


def probe_texts() -> list[str]:
    """Make the texts on which both have to agree; the same ones every time."""
    chance = random.Random(_SEED)  # noqa: S311 - only variety is asked of it
    return [
        "".join(
            chance.choice(chance.choice(_ALPHABETS))
            for _ in range(chance.randint(1, _LONGEST_PROBE))
        )
        for _ in range(PROBES)
    ]


def _exact(tokenizer: Tokenizer) -> Encode:
    def encode(texts: Sequence[str]) -> list[list[int]]:
        # Unlike encode, the batch call lets other Python threads run meanwhile.
        batch = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in batch]

    return encode


def _fastokens(tokenizer: Tokenizer) -> Encode | None:
    try:
        from fastokens import Tokenizer as FastTokenizer
    except ImportError:
        return None
    try:
        fast = FastTokenizer.from_json_str(tokenizer.to_str())
    except Exception as error:  # not every kind of tokenizer can be taken over
        logger.info("fastokens cannot take this tokenizer over (%s); not used.", error)
        return None
    return lambda texts: [fast.encode(text, False).ids for text in texts]
