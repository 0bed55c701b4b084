"""Where a tokenizer and its chat template come from: GGUF metadata, or a checkpoint directory.

Builds what the publisher describes and judges nothing; whether it is safe to use is proven by
`backend.tokenizer`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from backend.chat_template import ChatTemplate
from backend.embedded.gguf import GgufError, GgufFile
from backend.errors import TokenizerError

# Pieces of text that are tokenised on their own, as published in each model's tokenizer.json.
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PIECES = _PIECES.format(digits=r"\p{N}")
LLAMA3_PIECES = _PIECES.format(digits=r"\p{N}{1,3}")

# `tokenizer.ggml.token_type`: tokens that text must not become by itself.
_CONTROL, _USER_DEFINED = 3, 4
_NAMED_TOKENS = ("bos", "eos", "unknown", "padding")
_VARIABLES = {"unknown": "unk_token", "padding": "pad_token"}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer that recognises control tokens, and the template that writes them.

    Attributes:
        name: where it comes from, for messages.
        tokenizer: recognises control tokens in the text it is given.
        template: the model's chat template.
    """

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate


def _split(pieces: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    """What `tokenizer.ggml.pre` stands for."""

    pre_tokenizer: pre_tokenizers.PreTokenizer
    nfc: bool = False
    ignore_merges: bool = False


_KINDS = {
    "qwen2": _Kind(_split(QWEN2_PIECES), nfc=True),
    "llama-bpe": _Kind(_split(LLAMA3_PIECES), ignore_merges=True),
    "smollm": _Kind(_single_digits()),
}


def vocabulary_from_gguf(path: Path) -> Vocabulary:
    """Build the tokenizer that a GGUF file describes.

    Raises:
        TokenizerError: the file is unreadable, or holds another kind of tokenizer than byte-level
            BPE with known pieces, or no chat template.
    """
    try:
        metadata = GgufFile(path).metadata
    except GgufError as error:
        raise TokenizerError(str(error)) from error
    kind = _kind(path, metadata)
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in metadata["tokenizer.ggml.merges"]]
    try:
        model = BPE(
            vocab={text: number for number, text in enumerate(tokens)},
            merges=merges,
            ignore_merges=kind.ignore_merges,
        )
    except Exception as error:  # the library raises bare exceptions
        raise TokenizerError(f"The vocabulary in {path} is damaged: {error}.") from error
    tokenizer = Tokenizer(model)
    if kind.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = kind.pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(text, normalized=False, special=True)
            for text, number in zip(tokens, types, strict=True)
            if number in {_CONTROL, _USER_DEFINED}
        ]
    )
    return Vocabulary(str(path), tokenizer, _template(path, metadata, tokens))


def _kind(path: Path, metadata: Mapping[str, Any]) -> _Kind:
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if model != "gpt2" or pre not in _KINDS:
        raise TokenizerError(
            f"The tokenizer in {path} is of kind {model!r} / {pre!r}, which is not supported. "
            f"Use a file whose kind is 'gpt2' / one of {', '.join(_KINDS)}."
        )
    missing = {
        key
        for key in ("tokens", "token_type", "merges")
        if not isinstance(metadata.get(f"tokenizer.ggml.{key}"), list)
    }
    if missing or len(metadata["tokenizer.ggml.tokens"]) != len(
        metadata["tokenizer.ggml.token_type"]
    ):
        raise TokenizerError(f"The vocabulary in {path} is incomplete. Use another file.")
    return _KINDS[pre]


def _template(path: Path, metadata: Mapping[str, Any], tokens: list[str]) -> ChatTemplate:
    source = metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        raise TokenizerError(f"{path} has no chat template. Use an instruction-tuned model.")
    numbers = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in _NAMED_TOKENS}
    variables = {
        _VARIABLES.get(name, f"{name}_token"): tokens[number]
        for name, number in numbers.items()
        if isinstance(number, int) and 0 <= number < len(tokens)
    }
    return ChatTemplate(source, variables)


def vocabulary_from_pretrained(directory: Path) -> Vocabulary:
    """Load the tokenizer of a checkpoint.

    Args:
        directory: holds its tokenizer files.

    Raises:
        TokenizerError: it cannot be loaded, or has no fast tokenizer or no chat template.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(directory)
        tokenizer: Tokenizer = loaded.backend_tokenizer
        source = loaded.get_chat_template()
    except Exception as error:  # it fails in dozens of ways, none of them documented
        raise TokenizerError(
            f"The tokenizer in {directory} cannot be loaded ({type(error).__name__}: {error}). "
            "Name a directory or hub id that holds a tokenizer.json and a chat template."
        ) from error
    return Vocabulary(
        str(directory), tokenizer, ChatTemplate(source, dict(loaded.special_tokens_map))
    )
