"""Layers in tiles equal their dequantised matrices, however the tiles divide."""

import numpy as np
import pytest

from backend.embedded.gguf import Tensor, TensorType
from backend.embedded.linear import add_projection, load_linear, project, tile_size
from backend.embedded.threads import ComputePool


@pytest.mark.parametrize(
    ("outputs", "size"),
    [(1, 16), (128, 128), (256, 128), (896, 112), (1536, 128), (4864, 128), (151_936, 128)],
)
def test_tile_is_of_about_128_outputs(outputs: int, size: int) -> None:
    assert tile_size(outputs) == size


@pytest.mark.parametrize("outputs", [400, 896, 1100, 4864, 8960])
def test_two_threads_get_equally_many_tiles(outputs: int) -> None:
    assert -(-outputs // tile_size(outputs)) % 2 == 0


@pytest.mark.parametrize("outputs", [1, 100, 500, 900])
def test_every_output_is_in_one_tile(pool: ComputePool, outputs: int) -> None:
    generator = np.random.default_rng(outputs)
    matrix = generator.standard_normal((outputs, 32), np.float32)
    x = generator.standard_normal((3, 32), np.float32)
    tensor = Tensor("t", matrix.shape, TensorType.F32, matrix.view(np.uint8))
    layer = load_linear(tensor, pool)
    np.testing.assert_allclose(project(pool, x, layer), x @ matrix.T, atol=1e-4)
    total = np.ones((3, outputs), np.float32)
    add_projection(pool, total, x, layer)
    np.testing.assert_allclose(total, 1 + x @ matrix.T, atol=1e-4)
