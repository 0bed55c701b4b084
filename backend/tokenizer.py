"""Turn chats into token ids such that a caller's text can never act as a control token.

Two encoders share one vocabulary: one recognises control tokens and is only asked for the ids of
those that the template itself wrote; the other knows none and encodes everything else. That this
holds, and that the two together give what the model's own tokenizer gives, is proven when the
tokenizer is built; one that fails the proof is refused.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tokenizers import Tokenizer

from backend.chat_template import (
    ControlStrings,
    Message,
    Placeholders,
    TemplateRefused,
    conceal_messages,
)
from backend.checkpoint import tokenizer_directory
from backend.config import Config
from backend.errors import TokenizerError
from backend.plain_encoder import plain_encoder
from backend.vocabulary import Vocabulary, vocabulary_from_gguf, vocabulary_from_pretrained

Piece: TypeAlias = str | int
"""Plain text, or the id of a control token."""

# Long text is counted in slices until it is known to be too long: a slice takes some milliseconds.
_SLICE_CHARACTERS = 16_384
# Cutting words apart costs tokens, so a count from slices is only near the true one.
_SLICE_ALLOWANCE = 1.25

_PROBE: tuple[Message, ...] = (
    {"role": "user", "content": "Café, naïve: 12 + 34 = 46.\n\n  «Здравствуйте» 你好 🙂"},
    {"role": "user", "content": "And then?\n"},
)


class TooManyTokens(Exception):
    """The text is so far over the limit that it was not tokenised to its end.

    Attributes:
        counted: tokens found before stopping; more than the limit.
    """

    def __init__(self, counted: int) -> None:
        super().__init__(f"The text has more than {counted} tokens.")
        self.counted = counted


class OpenTurn(NamedTuple):
    """A rendered chat whose last user turn goes on with a text that is still to come.

    Attributes:
        before: everything up to that place.
        after: the end of the turn and the opened turn of the assistant.
    """

    before: tuple[Piece, ...]
    after: tuple[Piece, ...]


class ChatTokenizer:
    """A model's tokenizer and chat template, safe for untrusted text.

    Attributes:
        name: where it comes from, for messages.
        template: the model's chat template.
        vocabulary_size: every token id is below it.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Take a vocabulary into use.

        Raises:
            TokenizerError: it does not keep callers' text and control tokens apart, or cannot be
                used piece by piece, or its template cannot show what we need to show.
        """
        self.name = vocabulary.name
        self.template = vocabulary.template
        self._trusted = vocabulary.tokenizer
        self._plain = _without_control_tokens(vocabulary.tokenizer)
        self._encode_plain = plain_encoder(self._plain, self.name)
        self.vocabulary_size = 1 + max(self._trusted.get_vocab(with_added_tokens=True).values())
        added = self._trusted.get_added_tokens_decoder()
        self._control_ids = {token.content: number for number, token in added.items()}
        self._controls = ControlStrings(self._control_ids)
        self._prove_separation()
        self._prove_agreement()

    def render(self, messages: Sequence[Message]) -> OpenTurn:
        """Render `messages`; the last one stays open at its end.

        Args:
            messages: chat messages; the last is a user's.

        Raises:
            TemplateRefused: the template cannot render them.
        """
        placeholders = Placeholders()
        safe = conceal_messages(messages, self._controls, placeholders)
        safe[-1]["content"] += placeholders.slot
        parts = self.template.render(safe).split(placeholders.slot)
        if len(parts) != 2:
            raise TemplateRefused("it does not show the last user turn exactly once")
        before, after = (tuple(self._pieces(part, placeholders)) for part in parts)
        return OpenTurn(before, after)

    def encode(self, pieces: Sequence[Piece], *, limit: int | None = None) -> list[int]:
        """Encode a rendered chat, or a part of one.

        Args:
            pieces: plain text and control tokens; neighbouring texts are encoded as one.
            limit: in tokens; text far over it is given up early.

        Raises:
            TooManyTokens: `limit` is given and far exceeded. A result may still be over it.
        """
        merged = list(_merged(pieces))
        texts = [piece for piece in merged if isinstance(piece, str)]
        if limit is not None and sum(map(len, texts)) > limit:
            self._refuse_far_over(texts, limit)
        encoded = iter(self.encode_texts(texts))
        ids: list[int] = []
        for piece in merged:
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids.extend(next(encoded))
        return ids

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text as plain text; control strings in it become ordinary tokens."""
        return self._encode_plain(texts)

    def decode(self, ids: Sequence[int]) -> str:
        """Give the text of `ids`, control tokens written out."""
        return self._trusted.decode(list(ids), skip_special_tokens=False)

    @property
    def control_ids(self) -> frozenset[int]:
        """The ids of all control tokens."""
        return frozenset(self._control_ids.values())

    def _pieces(self, rendered: str, placeholders: Placeholders) -> Iterator[Piece]:
        for number, part in enumerate(self._controls.split(rendered)):
            if number % 2:
                yield self._control_ids[part]
            elif part:
                yield placeholders.restore(part)

    def _refuse_far_over(self, texts: Sequence[str], limit: int) -> None:
        counted = 0
        for text in texts:
            for start in range(0, len(text), _SLICE_CHARACTERS):
                counted += len(self.encode_texts([text[start : start + _SLICE_CHARACTERS]])[0])
                if counted > limit * _SLICE_ALLOWANCE:
                    raise TooManyTokens(counted)

    def _prove_separation(self) -> None:
        texts = list(self._control_ids)
        for text, ids in zip(texts, self.encode_texts(texts), strict=True):
            if self.control_ids.intersection(ids) or self._plain.decode(ids) != text:
                raise TokenizerError(
                    f"The tokenizer of {self.name} cannot be used safely: the text {text!r} in a "
                    "state would act as a control token. Use another model."
                )

    def _prove_agreement(self) -> None:
        try:
            turn = self.render(_PROBE)
            rendered = self.template.render(_PROBE)
        except TemplateRefused as error:
            raise TokenizerError(
                f"The chat template of {self.name} cannot show two user turns: {error}. Use "
                "another model."
            ) from error
        expected = self._trusted.encode(rendered, add_special_tokens=False).ids
        if self.encode([*turn.before, *turn.after]) != expected:
            raise TokenizerError(
                f"The tokenizer of {self.name} cannot be used piece by piece: text after a "
                "control token becomes other tokens than in the whole chat. Use another model."
            )


def _without_control_tokens(tokenizer: Tokenizer) -> Tokenizer:
    plain = Tokenizer(tokenizer.model)  # the vocabulary is shared, added tokens are not
    plain.normalizer = tokenizer.normalizer
    plain.pre_tokenizer = tokenizer.pre_tokenizer
    plain.decoder = tokenizer.decoder
    return plain


def _merged(pieces: Sequence[Piece]) -> Iterator[Piece]:
    texts: list[str] = []
    for piece, following in pairwise([*pieces, None]):
        if isinstance(piece, str):
            texts.append(piece)
        if texts and not isinstance(following, str):
            yield "".join(texts)
            texts.clear()
        if isinstance(piece, int):
            yield piece


def load_tokenizer(config: Config) -> ChatTokenizer:
    """Load the tokenizer that belongs to the configured model. Blocks for a second or more.

    Raises:
        TokenizerError: it cannot be loaded or used.
        Exception: whatever fetching the weights of an embedded profile raises.
    """
    if config.selected.engine == "embedded":
        from backend.embedded.weights import locate

        return ChatTokenizer(vocabulary_from_gguf(locate(config, progress=False)))
    path = Path(config.model or "").expanduser()
    if path.is_file():
        return ChatTokenizer(vocabulary_from_gguf(path))
    return ChatTokenizer(vocabulary_from_pretrained(tokenizer_directory(config)))
