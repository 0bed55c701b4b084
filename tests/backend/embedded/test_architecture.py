"""Models that the forward pass would get wrong are refused by name of the reason."""

import math
from pathlib import Path
from typing import Any

import pytest

from backend.embedded.architecture import read_architecture
from backend.embedded.gguf import GgufError, GgufFile
from tests.support.tiny_gguf import write_tiny_gguf


def test_shape_of_the_tiny_model(tiny_gguf: Path) -> None:
    shape = read_architecture(GgufFile(tiny_gguf))
    assert (shape.layers, shape.width, shape.heads, shape.key_heads) == (2, 64, 4, 2)
    assert (shape.head_size, shape.hidden, shape.vocabulary) == (16, 128, 851)
    assert (shape.interleaved, shape.rope_base, shape.context_length) == (False, 1e6, 32_768)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"architecture": "gemma3"}, "architecture is 'gemma3'.*llama and qwen2"),
        ({"metadata": {"qwen2.rope.scaling.type": "yarn"}}, "rotary scaling of type 'yarn'"),
        ({"metadata": {"qwen2.expert_count": 8}}, "needs experts"),
        ({"metadata": {"qwen2.attention.sliding_window": 4096}}, "needs windows"),
        ({"metadata": {"qwen2.rope.dimension_count": 8}}, "rope.dimension_count differs"),
        ({"heads": 64, "kv_heads": 2}, "do not divide evenly"),
        ({"omit": ("blk.1.ffn_up.weight",)}, "blk.1.ffn_up.weight is missing"),
        ({"omit": ("token_embd.weight",)}, "token_embd.weight has|token_embd.weight is missing"),
        ({"omit": ("blk.0.attn_q.bias",)}, "blk.0.attn_q.bias is missing"),
    ],
)
def test_unsupported_model_is_refused(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    path = write_tiny_gguf(tmp_path / "odd.gguf", **options)
    with pytest.raises(GgufError, match=reason) as caught:
        read_architecture(GgufFile(path))
    assert "odd.gguf" in str(caught.value)


def opened(path: Path) -> GgufFile:
    return GgufFile(write_tiny_gguf(path))


@pytest.mark.parametrize("value", [None, 0, "many", True, 2.5, math.inf, math.nan])
def test_missing_or_senseless_number_is_named(tmp_path: Path, value: object) -> None:
    file = opened(tmp_path / "m.gguf")
    file.metadata["qwen2.block_count"] = value
    with pytest.raises(GgufError, match=r"qwen2\.block_count"):
        read_architecture(file)


def test_width_must_be_whole_heads(tmp_path: Path) -> None:
    file = opened(tmp_path / "m.gguf")
    file.metadata["qwen2.attention.head_count"] = 7
    with pytest.raises(GgufError, match="no multiple of its 7 heads"):
        read_architecture(file)


def test_foreign_tensor_is_refused(tmp_path: Path) -> None:
    file = opened(tmp_path / "m.gguf")
    file.tensors["blk.0.attn_q_norm.weight"] = file.tensors["output_norm.weight"]
    with pytest.raises(GgufError, match="attn_q_norm"):
        read_architecture(file)


def test_biases_are_qwens_alone(tmp_path: Path) -> None:
    file = GgufFile(write_tiny_gguf(tmp_path / "m.gguf", architecture="llama"))
    file.tensors["blk.0.attn_q.bias"] = file.tensors["output_norm.weight"]
    with pytest.raises(GgufError, match=r"attn_q\.bias"):
        read_architecture(file)


def test_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    file = opened(tmp_path / "m.gguf")
    file.metadata["qwen2.feed_forward_length"] = 256
    with pytest.raises(GgufError, match=r"ffn_gate\.weight has shape"):
        read_architecture(file)


def test_quantised_vector_is_refused(tmp_path: Path) -> None:
    file = opened(tmp_path / "m.gguf")
    quantised = GgufFile(write_tiny_gguf(tmp_path / "q.gguf", encodings=("Q8_0",)))
    row = quantised.tensors["blk.0.attn_q.weight"]
    norm = file.tensors["output_norm.weight"]
    file.tensors["output_norm.weight"] = type(norm)(norm.name, norm.shape, row.type, row.raw[:1])
    with pytest.raises(GgufError, match="only matrices"):
        read_architecture(file)
