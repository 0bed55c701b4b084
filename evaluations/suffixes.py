"""The token ids of question suffixes, remembered where they come again.

The same questions are asked about one state after another, so their suffixes are encoded once. What
is remembered hangs on everything that shapes it, the text of question, options, labels and template
to the last character, and takes a bounded amount of memory. Thread-safe; knows no requests.
"""

from collections.abc import Sequence
from functools import lru_cache

from backend.token_ids import TokenIds
from backend.tokenizer import ChatTokenizer, Piece

MAX_ENTRIES = 1024
MAX_CHARACTERS = 2048
"""Of a suffix that is remembered. A character is at most four bytes and so at most four tokens,
each written in eight: 36 bytes, or 75 MB for all entries at their longest."""


class Suffixes:
    """Encodes suffixes with one tokenizer."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._remembered = lru_cache(MAX_ENTRIES)(self._encoded)

    def encode(self, pieces: Sequence[Piece], *, limit: int) -> TokenIds:
        """Encode a suffix.

        Args:
            pieces: plain text and control tokens.
            limit: in tokens; text far over it is given up early.

        Raises:
            TooManyTokens: `limit` is far exceeded. A result may still be over it.
        """
        if sum(len(piece) for piece in pieces if isinstance(piece, str)) > MAX_CHARACTERS:
            return TokenIds.of(self._tokenizer.encode(pieces, limit=limit))
        return self._remembered(tuple(pieces))

    def _encoded(self, pieces: tuple[Piece, ...]) -> TokenIds:
        return TokenIds.of(self._tokenizer.encode(pieces))
