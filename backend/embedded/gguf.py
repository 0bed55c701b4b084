"""Read GGUF files: metadata at once, tensors as views of the mapped file.

Only the container is understood here; what the metadata means is for the model and the tokenizer
to say. Nothing is copied or dequantised, and nothing in a file is trusted: a truncated, foreign or
damaged file ends in one `GgufError` with a sentence that names the file.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3).
"""

import mmap
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_STRING, _ARRAY = 8, 9
_NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_LENGTH = struct.Struct("<Q")
_MAX_DIMENSIONS = 4
_MAX_NESTING = 4


class GgufError(Exception):
    """The file is not a GGUF file this engine can read; the message says why."""


class TensorType(IntEnum):
    """The tensor encodings this engine reads, by their number in the file."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14


# Weights in a block, bytes in a block.
BLOCKS: dict[TensorType, tuple[int, int]] = {
    TensorType.F32: (1, 4),
    TensorType.F16: (1, 2),
    TensorType.Q4_0: (32, 18),
    TensorType.Q4_1: (32, 20),
    TensorType.Q5_0: (32, 22),
    TensorType.Q5_1: (32, 24),
    TensorType.Q8_0: (32, 34),
    TensorType.Q4_K: (256, 144),
    TensorType.Q5_K: (256, 176),
    TensorType.Q6_K: (256, 210),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the file.

    Attributes:
        name: e.g. `blk.0.attn_q.weight`.
        shape: row-major, the fastest axis last: a linear layer is `(outputs, inputs)`.
        type: how the bytes encode the values.
        raw: the bytes, a read-only view of the mapped file shaped `(rows, bytes per row)`.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    raw: Bytes


class GgufFile:
    """A GGUF file, mapped into memory for as long as this object or any tensor of it lives.

    Attributes:
        path: where the file is.
        metadata: every key of the file; arrays are lists, strings are `str` (undecodable bytes
            are replaced, so that a damaged vocabulary shows up where it is used).
        tensors: by name, in file order.
    """

    def __init__(self, path: Path | str) -> None:
        """Map the file and read everything but the tensors' values.

        Raises:
            GgufError: the file is missing, truncated, no GGUF, or holds an encoding or version
                that is not supported.
        """
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise GgufError(f"The weights file {self.path} cannot be read: {error}.") from error
        self._at = 0
        try:
            self._read()
        except (struct.error, IndexError, MemoryError, OverflowError) as error:
            raise self._refusal("it ends early or its header is damaged") from error

    def release_pages(self) -> None:
        """Give the mapped pages back to the system; they are read again where a view needs them."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._bytes.madvise(mmap.MADV_DONTNEED)

    def _refusal(self, reason: str) -> GgufError:
        return GgufError(f"The weights file {self.path} cannot be used: {reason}.")

    def _read(self) -> None:
        if self._bytes[:4] != b"GGUF":
            raise self._refusal("it does not start with the letters GGUF, so it is no GGUF file")
        self._at = 4
        version = int(self._number("<u4"))
        if version not in {2, 3}:
            raise self._refusal(f"its format version is {version}; supported are 2 and 3")
        tensor_count, key_count = int(self._number("<u8")), int(self._number("<u8"))
        self.metadata: dict[str, Any] = {}
        for _ in range(key_count):
            key = self._text()
            self.metadata[key] = self._value(int(self._number("<u4")))
        headers = [self._tensor_header() for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise self._refusal("its alignment is no positive number")
        base = -(-self._at // alignment) * alignment
        self.tensors: dict[str, Tensor] = {
            name: self._tensor(name, shape, kind, base + offset)
            for name, shape, kind, offset in headers
        }

    def _number(self, dtype: str) -> int | float | bool:
        value: int | float | bool = np.frombuffer(self._take(np.dtype(dtype).itemsize), dtype)[
            0
        ].item()
        return value

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._bytes):
            raise IndexError
        taken = self._bytes[self._at : end]
        self._at = end
        return taken

    def _text(self) -> str:
        (length,) = _LENGTH.unpack(self._take(8))
        return self._take(length).decode("utf-8", "replace")

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY and depth < _MAX_NESTING:
            return self._array(depth)
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        raise self._refusal(f"its metadata holds a value of unknown kind {kind}")

    def _array(self, depth: int) -> list[Any]:
        kind, count = int(self._number("<u4")), int(self._number("<u8"))
        if kind == _STRING:
            return self._texts(count)
        if kind in _NUMBERS:
            dtype = np.dtype(_NUMBERS[kind])
            values: list[Any] = np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()
            return values
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _texts(self, count: int) -> list[str]:
        # Vocabularies have 150,000 entries: local names keep this at 0.1 s.
        source, at, end = self._bytes, self._at, len(self._bytes)
        texts = []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(source, at)
            start, at = at + 8, at + 8 + length
            if at > end:
                raise IndexError
            texts.append(source[start:at].decode("utf-8", "replace"))
        self._at = at
        return texts

    def _tensor_header(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text()
        dimensions = int(self._number("<u4"))
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._refusal(f"tensor {name} has {dimensions} dimensions")
        sizes = tuple(int(self._number("<u8")) for _ in range(dimensions))
        return name, sizes[::-1], int(self._number("<u4")), int(self._number("<u8"))

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> Tensor:
        if kind not in list(TensorType):
            supported = ", ".join(item.name for item in TensorType)
            raise self._refusal(
                f"tensor {name} is stored in encoding number {kind}; supported are {supported}"
            )
        encoding = TensorType(kind)
        per_block, block_bytes = BLOCKS[encoding]
        if shape[-1] % per_block:
            raise self._refusal(f"tensor {name} has rows of {shape[-1]}, not whole blocks")
        rows = 1
        for size in shape[:-1]:
            rows *= size
        row_bytes = shape[-1] // per_block * block_bytes
        if offset + rows * row_bytes > len(self._bytes):
            raise self._refusal(f"it ends before the values of tensor {name}")
        raw = np.frombuffer(self._bytes, np.uint8, rows * row_bytes, offset)
        return Tensor(name, shape, encoding, raw.reshape(rows, row_bytes))
