"""Linear layers whose weights stay compact in memory and become float32 only tile by tile.

A tile is about 128 outputs with all their inputs. It is stored transposed, outputs along the
fastest axis, so that decoding is a few long vector operations; the decoded tile fits the core's
cache and is multiplied at once. Measured on two cores (1,536 x 8,960, 4 bits): decoding costs
0.4 ns a weight, and the product then runs as fast as with ready-made float32 weights of four to
five times the memory, because a small tile is read from cache and not from memory.

The arithmetic is that of float32 weights: activations are never quantised.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from backend.embedded.gguf import Bytes, Tensor
from backend.embedded.quantisation import Codes, Floats, Grouped, floats, group
from backend.embedded.threads import ComputePool, Scratch

_TILE_OUTPUTS = 128
_THREADS_EVEN = 4
_VECTOR = 16  # float32 numbers in the widest vector register


class Tile(Protocol):
    """Some outputs of a linear layer."""

    @property
    def outputs(self) -> int:
        """How many."""

    @property
    def nbytes(self) -> int:
        """Memory it occupies, in bytes."""

    def weights(self, scratch: Scratch) -> Floats:
        """`(inputs, outputs)`, valid until the scratch is used again."""


@dataclass(frozen=True, slots=True)
class PlainTile:
    """Weights that are floating-point numbers already, `(inputs, outputs)`."""

    values: npt.NDArray[np.floating[Any]]

    @property
    def outputs(self) -> int:  # noqa: D102 - see Tile
        return int(self.values.shape[1])

    @property
    def nbytes(self) -> int:  # noqa: D102
        return self.values.nbytes

    def weights(self, scratch: Scratch) -> Floats:  # noqa: D102
        if self.values.dtype == np.float32:
            return self.values
        decoded = scratch.floats(self.values.shape)
        decoded[...] = self.values
        return decoded


@dataclass(frozen=True, slots=True)
class CodedTile:
    """Codes with a scale, and perhaps an offset, per group of inputs.

    Attributes:
        codes: `(groups, group size, outputs)`; for nibbles half the group size, where a low half
            byte is an input of the group's first half and a high one of its second.
        scale: `(groups, 1, outputs)`.
        offset: the same, or `None`.
        nibbles: whether a byte holds two codes.
    """

    codes: Codes
    scale: Floats
    offset: Floats | None
    nibbles: bool

    @property
    def outputs(self) -> int:  # noqa: D102
        return int(self.codes.shape[2])

    @property
    def nbytes(self) -> int:  # noqa: D102
        offset = 0 if self.offset is None else self.offset.nbytes
        return self.codes.nbytes + self.scale.nbytes + offset

    def weights(self, scratch: Scratch) -> Floats:  # noqa: D102
        groups, stored, outputs = self.codes.shape
        if self.nibbles:
            decoded = scratch.floats((groups, 2 * stored, outputs))
            half = scratch.codes(self.codes.shape)
            np.bitwise_and(self.codes, 15, out=half)
            decoded[:, :stored] = half
            np.right_shift(self.codes, 4, out=half)
            decoded[:, stored:] = half
        else:
            decoded = scratch.floats(self.codes.shape)
            decoded[...] = self.codes
        decoded *= self.scale
        if self.offset is not None:
            decoded += self.offset
        return decoded.reshape(-1, outputs)


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear layer without bias.

    Attributes:
        inputs: length of its input.
        outputs: length of its output.
        tiles: in the order of the outputs.
    """

    inputs: int
    outputs: int
    tiles: tuple[Tile, ...]

    @property
    def nbytes(self) -> int:
        """Memory of the weights, in bytes."""
        return sum(tile.nbytes for tile in self.tiles)


def load_linear(tensor: Tensor, pool: ComputePool) -> Linear:
    """Bring a matrix of the file into tiles; the pool's threads share the work.

    Args:
        tensor: `(outputs, inputs)`.
        pool: the threads.
    """
    outputs, inputs = tensor.shape
    size = tile_size(outputs)
    starts = range(0, outputs, size)
    tiles: list[Tile | None] = [None] * len(starts)

    def build(index: int, scratch: Scratch) -> None:
        start = starts[index]
        tiles[index] = _tile(tensor, tensor.raw[start : start + size])

    pool.run(build, range(len(starts)))
    return Linear(inputs, outputs, tuple(tile for tile in tiles if tile is not None))


def tile_size(outputs: int) -> int:
    """Outputs of a tile: about 128, chosen so that two or four threads get equally many.

    It matters for few tiles: 896 outputs are 8 tiles of 112 rather than 7 of 128, whose last one
    would be done by one thread while the others wait.
    """
    count = -(-outputs // _TILE_OUTPUTS)
    if count >= _THREADS_EVEN:
        count = -(-count // _THREADS_EVEN) * _THREADS_EVEN
    return -(-outputs // (count * _VECTOR)) * _VECTOR


def _tile(tensor: Tensor, rows: Bytes) -> Tile:
    plain = floats(tensor.type, rows)
    if plain is not None:
        return PlainTile(np.ascontiguousarray(plain.T))
    return _coded(group(tensor.type, rows))


def _coded(rows: Grouped) -> CodedTile:
    codes: Codes = rows.codes
    if rows.fits_nibble:
        half = codes.shape[2] // 2
        codes = codes[..., :half] | codes[..., half:] << 4
    return CodedTile(
        np.ascontiguousarray(codes.transpose(1, 2, 0)),
        _per_group(rows.scale),
        None if rows.offset is None else _per_group(rows.offset),
        rows.fits_nibble,
    )


def _per_group(values: Floats) -> Floats:
    return np.ascontiguousarray(values.T)[:, None, :]


def project(pool: ComputePool, x: Floats, *layers: Linear) -> Floats:
    """Outputs of one or more layers on the same input, side by side.

    Args:
        pool: the threads that share the tiles.
        x: `(rows, inputs)`.
        layers: all with the same number of inputs.

    Returns:
        `(rows, sum of outputs)`.
    """
    tiles = [tile for layer in layers for tile in layer.tiles]
    result = np.empty((len(x), sum(layer.outputs for layer in layers)), np.float32)

    def work(job: tuple[Tile, slice], scratch: Scratch) -> None:
        tile, columns = job
        np.matmul(x, tile.weights(scratch), out=result[:, columns])

    pool.run(work, zip(tiles, _columns(tiles), strict=True))
    return result


def add_projection(pool: ComputePool, total: Floats, x: Floats, layer: Linear) -> None:
    """Add a layer's outputs to what is there, as residual connections do.

    Args:
        pool: the threads that share the tiles.
        total: `(rows, outputs)`, changed in place.
        x: `(rows, inputs)`.
        layer: the layer.
    """

    def work(job: tuple[Tile, slice], scratch: Scratch) -> None:
        tile, columns = job
        total[:, columns] += x @ tile.weights(scratch)

    pool.run(work, zip(layer.tiles, _columns(layer.tiles), strict=True))


def gated(pool: ComputePool, x: Floats, gate: Linear, up: Linear) -> Floats:
    """`silu(x gate) * (x up)`, the inner half of a SwiGLU feed-forward layer.

    Args:
        pool: the threads that share the tiles.
        x: `(rows, inputs)`.
        gate: the layer whose output goes through `silu(g) = g / (1 + exp(-g))`.
        up: a layer of the same shape.

    Returns:
        `(rows, outputs)`.
    """
    result = np.empty((len(x), gate.outputs), np.float32)

    def work(job: tuple[Tile, Tile, slice], scratch: Scratch) -> None:
        gate_tile, up_tile, columns = job
        opened = x @ gate_tile.weights(scratch)
        carried = x @ up_tile.weights(scratch)
        with np.errstate(over="ignore"):  # exp overflows to infinity, whose quotient is the limit 0
            carried *= opened
            np.negative(opened, out=opened)
            np.exp(opened, out=opened)
        opened += 1
        np.divide(carried, opened, out=result[:, columns])

    pool.run(work, zip(gate.tiles, up.tiles, _columns(gate.tiles), strict=True))
    return result


def _columns(tiles: Sequence[Tile]) -> list[slice]:
    start, columns = 0, []
    for tile in tiles:
        columns.append(slice(start, start + tile.outputs))
        start += tile.outputs
    return columns
