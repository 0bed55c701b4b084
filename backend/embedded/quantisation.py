"""The block formats of GGUF tensors, brought into one common form.

Every quantised format here is `weight = scale * code + offset` with one scale (and perhaps one
offset) per group of 16 or 32 neighbouring inputs. Codes are small integers; scales and offsets are
float32. The products of a format's own scales are exact in float32, so a weight computed from the
common form equals the format's definition bit for bit: nothing is ever requantised.

Layouts: ggml's `block_*` structures (https://github.com/ggml-org/ggml, `ggml-common.h`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from backend.embedded.gguf import BLOCKS, Bytes, Tensor, TensorType

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8 | np.int8]


@dataclass(frozen=True, slots=True)
class Grouped:
    """Rows of a quantised matrix in the common form.

    Attributes:
        codes: `(rows, groups, group size)`, small integers.
        scale: `(rows, groups)`.
        offset: `(rows, groups)`, or `None` where the format has none.
        fits_nibble: whether every code is from 0 to 15.
    """

    codes: Codes
    scale: Floats
    offset: Floats | None
    fits_nibble: bool = False

    def dequantise(self) -> Floats:
        """The weights, `(rows, inputs)`."""
        weights: Floats = self.codes * self.scale[..., None]
        if self.offset is not None:
            weights += self.offset[..., None]
        return weights.reshape(len(weights), -1)


def dequantise(encoding: TensorType, raw: Bytes) -> Floats:
    """Decode whole rows to float32.

    Args:
        encoding: how the rows are stored.
        raw: `(rows, bytes per row)`.

    Returns:
        `(rows, inputs)`.
    """
    plain = floats(encoding, raw)
    if plain is None:
        return group(encoding, raw).dequantise()
    rows: Floats = plain.astype(np.float32)
    return rows


def vector(tensor: Tensor) -> Floats:
    """A one-dimensional tensor as float32."""
    return dequantise(tensor.type, tensor.raw).reshape(-1)


def floats(encoding: TensorType, raw: Bytes) -> npt.NDArray[np.floating[Any]] | None:
    """Rows that are stored as floating-point numbers, as they are; `None` for other encodings."""
    if encoding is TensorType.F32:
        return np.ascontiguousarray(raw).view("<f4")
    if encoding is TensorType.F16:
        return np.ascontiguousarray(raw).view("<f2")
    return None


def group(encoding: TensorType, raw: Bytes) -> Grouped:
    """Bring whole rows of a quantised encoding into the common form.

    Args:
        encoding: any but `F32` and `F16`.
        raw: `(rows, bytes per row)`.
    """
    _, block_bytes = BLOCKS[encoding]
    return _READERS[encoding](raw.reshape(len(raw), -1, block_bytes))


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of every block."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0].astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Bytes to codes 0-15: all low halves first, then all high halves (last axis doubled)."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _bits(packed: Bytes) -> Bytes:
    """Bytes to single bits, least significant first (last axis times 8)."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def _q4_0(blocks: Bytes) -> Grouped:
    scale = _half(blocks, 0)
    return Grouped(_nibbles(blocks[..., 2:]), scale, np.float32(-8) * scale, fits_nibble=True)


def _q4_1(blocks: Bytes) -> Grouped:
    return Grouped(_nibbles(blocks[..., 4:]), _half(blocks, 0), _half(blocks, 2), fits_nibble=True)


def _q5_0(blocks: Bytes) -> Grouped:
    codes = _nibbles(blocks[..., 6:]) | _bits(blocks[..., 2:6]) << 4
    return Grouped(codes.view(np.int8) - np.int8(16), _half(blocks, 0), None)


def _q5_1(blocks: Bytes) -> Grouped:
    codes = _nibbles(blocks[..., 8:]) | _bits(blocks[..., 4:8]) << 4
    return Grouped(codes, _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Bytes) -> Grouped:
    return Grouped(blocks[..., 2:].view(np.int8), _half(blocks, 0), None)


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scales and offsets of the eight groups of a Q4_K or Q5_K block, `(rows, groups)` each.

    Twelve bytes hold eight 6-bit scales and eight 6-bit minima; the last four of each are split
    into four low bits and the two high bits that earlier bytes have to spare.
    """
    low, middle, high = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=-1)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=-1)
    scale = _half(blocks, 0)[..., None] * scales
    offset = -_half(blocks, 2)[..., None] * minima
    rows = len(blocks)
    return scale.reshape(rows, -1), offset.reshape(rows, -1)


def _k_nibbles(blocks: Bytes, start: int) -> Bytes:
    """Codes of a block whose 32-byte runs each hold two groups, `(rows, blocks, 8, 32)`."""
    packed = blocks[..., start : start + 128].reshape(*blocks.shape[:2], 4, 1, 32)
    return np.concatenate([packed & 15, packed >> 4], axis=-2).reshape(*blocks.shape[:2], 8, 32)


def _q4_k(blocks: Bytes) -> Grouped:
    scale, offset = _k_scales(blocks)
    codes = _k_nibbles(blocks, 16).reshape(len(blocks), -1, 32)
    return Grouped(codes, scale, offset, fits_nibble=True)


def _q5_k(blocks: Bytes) -> Grouped:
    scale, offset = _k_scales(blocks)
    fifth = _bits(blocks[..., 16:48, None]).swapaxes(-1, -2)  # bit g of byte l: group g, input l
    codes = _k_nibbles(blocks, 48) | fifth << 4
    return Grouped(codes.reshape(len(blocks), -1, 32), scale, offset)


def _q6_k(blocks: Bytes) -> Grouped:
    rows, count, _ = blocks.shape
    low = blocks[..., :128].reshape(rows, count, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=-2).reshape(rows, count, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = blocks[..., 128:192].reshape(rows, count, 2, 1, 32) >> shifts & 3
    codes = (low | high << 4).view(np.int8) - np.int8(32)
    scale = _half(blocks, 208)[..., None] * blocks[..., 192:208].view(np.int8)
    return Grouped(codes.reshape(rows, -1, 16), scale.reshape(rows, -1), None)


_READERS = {
    TensorType.Q4_0: _q4_0,
    TensorType.Q4_1: _q4_1,
    TensorType.Q5_0: _q5_0,
    TensorType.Q5_1: _q5_1,
    TensorType.Q8_0: _q8_0,
    TensorType.Q4_K: _q4_k,
    TensorType.Q5_K: _q5_k,
    TensorType.Q6_K: _q6_k,
}
