"""Reading the container: what is in it, and a sentence for whatever is not right."""

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from backend.embedded.gguf import GgufError, GgufFile, TensorType


def header(keys: int = 0, tensors: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_agrees_with_the_gguf_package(tiny_gguf: Path) -> None:
    ours, theirs = GgufFile(tiny_gguf), GGUFReader(tiny_gguf)
    assert len(ours.tensors) == len(theirs.tensors)
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(tensor.shape.tolist()[::-1])
        assert mine.raw.tobytes() == tensor.data.tobytes()
        assert mine.type is TensorType.F32
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert ours.metadata[key] == field.contents()


def test_values_of_every_kind(tmp_path: Path) -> None:
    values = [
        (0, struct.pack("<B", 200), 200),
        (1, struct.pack("<b", -3), -3),
        (6, struct.pack("<f", 0.5), 0.5),
        (7, b"\1", True),
        (10, struct.pack("<Q", 2**40), 2**40),
        (12, struct.pack("<d", 0.1), 0.1),
        (8, text("é"), "é"),
        (9, struct.pack("<IQ", 7, 2) + b"\1\0", [True, False]),
        (9, struct.pack("<IQ", 8, 2) + text("a") + text(""), ["a", ""]),
        (9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 0, 2) + b"\1\2", [[1, 2]]),
    ]
    content = header(len(values))
    for index, (kind, encoded, _) in enumerate(values):
        content += text(f"k{index}") + struct.pack("<I", kind) + encoded
    read = GgufFile(write(tmp_path / "x.gguf", content)).metadata
    assert list(read.values()) == [value for _, _, value in values]


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=r"absent\.gguf cannot be read"):
        GgufFile(tmp_path / "absent.gguf")


def tensor(*, dimensions: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<{len(dimensions)}Q", *dimensions)
    counted = struct.pack("<I", len(dimensions)) + sizes
    return text("t") + counted + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot be read"),
        (b"\x7fELF" + bytes(40), "no GGUF file"),
        (b"GGUF", "ends early"),
        (header(version=1), "version is 1"),
        (header(keys=1), "ends early"),
        (header(keys=1) + struct.pack("<Q", 2**62), "ends early"),
        (header(keys=1) + text("k") + struct.pack("<I", 99), "unknown kind 99"),
        (header(keys=1) + text("k") + struct.pack("<IIQ", 9, 8, 3) + text("a"), "ends early"),
        (
            header(keys=1) + text("k") + struct.pack("<IIQ", 9, 8, 1) + struct.pack("<Q", 99),
            "ends early",
        ),
        (
            header(keys=1) + text("general.alignment") + struct.pack("<II", 4, 0),
            "alignment",
        ),
        (header(tensors=1) + tensor(dimensions=()), "0 dimensions"),
        (header(tensors=1) + tensor(kind=10), "encoding number 10; supported are F32"),
        (header(tensors=1) + tensor(dimensions=(33,), kind=8), "not whole blocks"),
        (header(tensors=1) + tensor(), "before the values of tensor t"),
    ],
)
def test_damage_is_a_sentence(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(GgufError, match=reason) as caught:
        GgufFile(write(tmp_path / "bad.gguf", content))
    assert "bad.gguf" in str(caught.value)
    assert str(caught.value).endswith(".")


def test_truncated_file_is_refused(tiny_gguf: Path, tmp_path: Path) -> None:
    whole = tiny_gguf.read_bytes()
    for length in (len(whole) - 1, len(whole) // 2, 300):
        with pytest.raises(GgufError):
            GgufFile(write(tmp_path / "cut.gguf", whole[:length]))


def test_released_pages_are_read_again(tiny_gguf: Path) -> None:
    file = GgufFile(tiny_gguf)
    before = np.array(file.tensors["token_embd.weight"].raw)
    file.release_pages()
    assert np.array_equal(file.tensors["token_embd.weight"].raw, before)
