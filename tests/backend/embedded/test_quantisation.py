"""Every encoding equals its definition bit for bit, also after tiles have packed it anew."""

import gguf
import numpy as np
import pytest

from backend.embedded.gguf import Tensor, TensorType
from backend.embedded.linear import load_linear, project
from backend.embedded.quantisation import dequantise, vector
from backend.embedded.threads import ComputePool, Scratch
from tests.support.tiny_gguf import random_blocks

ROWS, COLUMNS = 300, 512  # the last tile is not a whole one


def sample(encoding: TensorType) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of a random matrix, and its weights as the `gguf` package decodes them."""
    generator = np.random.default_rng(int(encoding))
    kind = gguf.GGMLQuantizationType(int(encoding))
    if encoding.name.endswith("_K"):
        raw = random_blocks(generator, (ROWS, COLUMNS), kind)
    else:
        values = generator.normal(size=(ROWS, COLUMNS)).astype(np.float32)
        if encoding is TensorType.F32:
            return values.view(np.uint8), values
        raw = gguf.quants.quantize(values, kind).view(np.uint8)
    return raw, gguf.quants.dequantize(raw, kind)


@pytest.mark.parametrize("encoding", list(TensorType), ids=lambda encoding: encoding.name)
def test_encoding_equals_its_definition(encoding: TensorType, pool: ComputePool) -> None:
    raw, expected = sample(encoding)
    assert np.array_equal(dequantise(encoding, raw), expected)
    layer = load_linear(Tensor("w", (ROWS, COLUMNS), encoding, raw), pool)
    tiles = [tile.weights(Scratch()).T.copy() for tile in layer.tiles]
    assert np.array_equal(np.concatenate(tiles), expected)
    assert [tile.outputs for tile in layer.tiles] == [112, 112, 76]


@pytest.mark.parametrize("encoding", [TensorType.Q4_K, TensorType.Q6_K, TensorType.F16])
def test_layers_side_by_side_are_a_product(encoding: TensorType, pool: ComputePool) -> None:
    raw, weights = sample(encoding)
    layer = load_linear(Tensor("w", (ROWS, COLUMNS), encoding, raw), pool)
    x = np.random.default_rng(0).normal(size=(5, COLUMNS)).astype(np.float32)
    expected = x.astype(np.float64) @ np.concatenate([weights, weights]).T.astype(np.float64)
    np.testing.assert_allclose(project(pool, x, layer, layer), expected, rtol=1e-4, atol=1e-4)


def test_four_bits_stay_under_a_byte_a_weight(pool: ComputePool) -> None:
    raw, weights = sample(TensorType.Q4_K)
    layer = load_linear(Tensor("w", (ROWS, COLUMNS), TensorType.Q4_K, raw), pool)
    assert layer.nbytes == weights.size * 0.75


def test_vector_has_one_dimension() -> None:
    values = np.arange(3, dtype=np.float32)
    tensor = Tensor("v", (3,), TensorType.F32, values.view(np.uint8).reshape(1, -1))
    assert np.array_equal(vector(tensor), values)
