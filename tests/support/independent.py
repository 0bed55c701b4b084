"""A second opinion on byte-level BPE, from an implementation that shares no code with ours."""

from pathlib import Path

import tiktoken

from backend.embedded.gguf import GgufFile
from tests.support.tiny_gguf import byte_alphabet

NORMAL = 1


def independent_encoding(path: Path, pieces: str) -> tiktoken.Encoding:
    """The vocabulary of a GGUF file, without its control tokens.

    Args:
        path: the file.
        pieces: the pattern of what is tokenised on its own.
    """
    byte_of = {char: byte for byte, char in enumerate(byte_alphabet())}
    metadata = GgufFile(path).metadata
    texts, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    ranks = {
        bytes(byte_of[char] for char in text): number
        for number, (text, kind) in enumerate(zip(texts, types, strict=True))
        if kind == NORMAL
    }
    return tiktoken.Encoding(
        "independent", pat_str=pieces, mergeable_ranks=ranks, special_tokens={}
    )
