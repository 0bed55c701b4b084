"""The token ids of question suffixes, remembered where they come again.

The same questions are asked about one state after another, so their suffixes are written and
encoded once. What is remembered hangs on everything that shapes it, the texts of question and
options and what the template says after them, to the last character, and takes a bounded amount of
memory. Thread-safe; knows no requests.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

from backend.token_ids import TokenIds
from backend.tokenizer import ChatTokenizer, Piece
from evaluations.question_text import characters, contents, option_count, question_text
from evaluations.questions import Content, Question
from evaluations.wording import Wording

MAX_ENTRIES = 1024
MAX_CHARACTERS = 2048
"""Of the texts that are kept with a suffix, the question's id among them. A character is at most
four bytes and so at most four tokens, each written in eight: 36 bytes, or 75 MB for all entries at
their longest. Labels and wording come to little beside that."""


class Suffixes:
    """Writes and encodes suffixes for one tokenizer.

    Args:
        tokenizer: the model's.
        wording: what is said around the caller's texts.
        marker: opens the assistant's answer.
        labels_for: gives the texts of the labels for a number of options.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        wording: Wording,
        marker: str,
        labels_for: Callable[[int], Sequence[str]],
    ) -> None:
        self._tokenizer = tokenizer
        self._wording = wording
        self._marker = marker
        self._labels_for = labels_for
        self._remembered = lru_cache(MAX_ENTRIES)(self._encoded)

    def encode(self, question: Question, end: tuple[Piece, ...], *, limit: int) -> TokenIds:
        """Show a question, close the user's turn, and open the answer.

        Args:
            question: what is asked.
            end: the end of the turn and the opened turn of the assistant.
            limit: in tokens; text far over it is given up early.

        Raises:
            InvalidRequest: a text of the question is nested too deeply.
            TooManyTokens: `limit` is far exceeded. A result may still be over it.
        """
        shown = contents(question)
        asked = _Asked((shown, end), question)
        ending = (piece for piece in end if isinstance(piece, str))
        if characters((question.id, *shown, *ending)) > MAX_CHARACTERS:
            return self._encoded(asked, limit=limit)
        return self._remembered(asked)

    def _encoded(self, asked: "_Asked", *, limit: int | None = None) -> TokenIds:
        labels = self._labels_for(option_count(asked.question))
        text = question_text(asked.question, self._wording, labels)
        _, end = asked.shaped_by
        return TokenIds.of(self._tokenizer.encode([text, *end, self._marker], limit=limit))


class _Asked:
    """Equal where the suffix is, whatever the question is called."""

    __slots__ = ("question", "shaped_by")

    def __init__(
        self, shaped_by: tuple[tuple[Content | None, ...], tuple[Piece, ...]], question: Question
    ) -> None:
        self.shaped_by = shaped_by
        self.question = question

    def __hash__(self) -> int:
        return hash(self.shaped_by)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and self.shaped_by == other.shaped_by
