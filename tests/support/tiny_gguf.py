"""A tiny random language model in GGUF form, written in a fraction of a second.

It has the shape of the real thing (byte-level BPE with Qwen2's control tokens and ChatML template,
grouped-query attention, tied or separate output head, any tensor encoding), so that every mechanism
can be tested without real weights. Its answers mean nothing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Encoding
from gguf import GGUFWriter, TokenType

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LABEL_ROWS = "ABCDEFGHIJ"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
WORDS = ("Question", "Answer", "Urgent", "refund", "billing", "message", "the", "and", "user")

CHAT_TEMPLATE = (
    "{%- if messages[0]['role'] == 'system' %}"
    "{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
    "{%- else %}"
    "{{- '<|im_start|>system\\nYou are Tiny. You are a helpful assistant.<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role != 'system' or not loop.first %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def byte_alphabet() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def vocabulary(words: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Tokens without the control ones, and merges in rank order.

    All letters and the pairs AA..JZ are single tokens, bare and with a leading space: 286 labels.
    `:` and `.` merge with a following line break, line breaks and spaces with each other, so that a
    careless boundary between two separately tokenised texts shows.

    Args:
        words: what further is to be a single token, a leading space included.
    """
    space, newline = "\u0120", "\u010a"
    merges = [(space, letter) for letter in LETTERS]
    merges += [(space + first, second) for first in LABEL_ROWS for second in LETTERS]
    merges += [(first, second) for first in LABEL_ROWS for second in LETTERS]
    merges += [(newline, newline), (":", newline), (".", newline)]
    merges += [(space, space), (space * 2, space * 2)]
    seen = {left + right for left, right in merges}
    for word in (*WORDS, *(word.replace(" ", space) for word in words)):
        for end in range(2, len(word) + 1):
            if word[:end] not in seen:
                seen.add(word[:end])
                merges.append((word[: end - 1], word[end - 1]))
    tokens = byte_alphabet() + [left + right for left, right in merges]
    return tokens, [f"{left} {right}" for left, right in merges]


def random_blocks(
    generator: np.random.Generator, shape: tuple[int, int], encoding: Encoding
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Random but sane bytes of a K-quant, which the `gguf` package reads but cannot write.

    Args:
        generator: source of the bytes.
        shape: rows, values in a row (a multiple of 256).
        encoding: Q4_K, Q5_K or Q6_K.
    """
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[encoding]
    blocks = generator.integers(0, 256, (shape[0], shape[1] // per_block, block_bytes), np.uint8)
    scale = 1 / (15 * 60 * np.sqrt(shape[1]) / 4)
    if encoding is Encoding.Q6_K:
        blocks[..., -2:] = half_bytes(
            generator, blocks.shape[:2], 1 / (16 * 64 * np.sqrt(shape[1]))
        )
    else:
        blocks[..., 0:2] = half_bytes(generator, blocks.shape[:2], scale)
        blocks[..., 2:4] = half_bytes(generator, blocks.shape[:2], scale * 7)
    return blocks.reshape(shape[0], -1)


def half_bytes(
    generator: np.random.Generator, shape: tuple[int, ...], scale: float
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Positive float16 numbers around `scale`, as bytes."""
    values = (scale * generator.uniform(0.5, 1.5, (*shape, 1))).astype("<f2")
    return values.view(np.uint8)


def write_tiny_gguf(
    path: Path,
    *,
    architecture: str = "qwen2",
    encodings: tuple[str, ...] = ("F32",),
    blocks: int = 2,
    embedding_length: int = 64,
    feed_forward_length: int = 128,
    heads: int = 4,
    kv_heads: int = 2,
    context_length: int = 32_768,
    tied: bool = True,
    seed: int = 0,
    metadata: Mapping[str, int | float | str | bool] = {},
    omit: tuple[str, ...] = (),
    words: Sequence[str] = (),
) -> Path:
    """Write the model and return its path.

    Args:
        path: where to write.
        architecture: `qwen2` (biases on q, k and v; half rotation) or `llama` (neither).
        encodings: names of tensor encodings, given out in turn to the matrices.
        blocks: transformer layers.
        embedding_length: a multiple of what the encodings need (32, K-quants 256) and of `heads`.
        feed_forward_length: a multiple of the same.
        heads: query heads.
        kv_heads: key and value heads, a divisor of `heads`.
        context_length: what the metadata declares, in tokens.
        tied: whether the output head is the embedding.
        seed: of the random weights.
        metadata: further keys, written as they are.
        omit: names of tensors that are left out, to test refusals.
        words: what further is to be a single token, a leading space included.
    """
    generator = np.random.default_rng(seed)
    writer = GGUFWriter(path, architecture)
    tokens, merges = vocabulary(words)
    everything = [*tokens, *CONTROL_TOKENS]
    types = [TokenType.NORMAL] * len(tokens) + [TokenType.CONTROL] * len(CONTROL_TOKENS)
    writer.add_name("Tiny random model")
    writer.add_context_length(context_length)
    writer.add_embedding_length(embedding_length)
    writer.add_block_count(blocks)
    writer.add_feed_forward_length(feed_forward_length)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6 if architecture == "qwen2" else 1e4)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(everything)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(everything.index("<|im_end|>"))
    writer.add_chat_template(CHAT_TEMPLATE)
    for key, value in metadata.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        add.get(type(value), writer.add_string)(key, value)  # type: ignore[operator]

    turn = 0

    def matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        nonlocal turn
        encoding = Encoding[encodings[turn % len(encodings)]]
        turn += 1
        if name in omit:
            return
        if encoding in {Encoding.Q4_K, Encoding.Q5_K, Encoding.Q6_K}:
            packed = random_blocks(generator, (rows, columns), encoding)
            writer.add_tensor(name, packed, raw_dtype=encoding)
            return
        values = generator.normal(0, gain / np.sqrt(columns), (rows, columns)).astype(np.float32)
        packed = values if encoding is Encoding.F32 else gguf.quants.quantize(values, encoding)
        writer.add_tensor(name, packed, raw_dtype=encoding)

    def vector(name: str, size: int, middle: float) -> None:
        if name not in omit:
            values = generator.normal(middle, 0.1, size).astype(np.float32)
            writer.add_tensor(name, values)

    kv_length = embedding_length // heads * kv_heads
    matrix("token_embd.weight", len(everything), embedding_length, gain=4.0)
    for block in range(blocks):
        prefix = f"blk.{block}."
        vector(prefix + "attn_norm.weight", embedding_length, 1.0)
        for part, size in (("q", embedding_length), ("k", kv_length), ("v", kv_length)):
            matrix(f"{prefix}attn_{part}.weight", size, embedding_length, gain=1.5)
            if architecture == "qwen2":
                vector(f"{prefix}attn_{part}.bias", size, 0.0)
        matrix(prefix + "attn_output.weight", embedding_length, embedding_length)
        vector(prefix + "ffn_norm.weight", embedding_length, 1.0)
        matrix(prefix + "ffn_gate.weight", feed_forward_length, embedding_length)
        matrix(prefix + "ffn_up.weight", feed_forward_length, embedding_length)
        matrix(prefix + "ffn_down.weight", embedding_length, feed_forward_length)
    vector("output_norm.weight", embedding_length, 1.0)
    if not tied:
        matrix("output.weight", len(everything), embedding_length)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
