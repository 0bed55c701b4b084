"""What the decoders let out, and what they refuse."""

import gzip
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openjev_site.decoding import CODINGS, CorruptBody, Decoder, OversizedBody, zstd

COMPRESS = {"zstd": zstd.compress, "gzip": gzip.compress, "x-gzip": gzip.compress}


def decoded(coding: str, chunks: list[bytes], room: int = 2**20) -> bytes:
    decoder = Decoder(CODINGS[coding])
    out = b""
    for chunk in chunks:
        out += decoder.feed(chunk, room - len(out))
    decoder.close()
    return out


@pytest.mark.parametrize("coding", CODINGS)
@given(body=st.binary(max_size=3000), step=st.integers(1, 64), frames=st.integers(1, 3))
def test_any_split_of_any_number_of_frames_decodes(
    coding: str, body: bytes, step: int, frames: int
) -> None:
    coded = COMPRESS[coding](body) * frames
    chunks = [coded[at : at + step] for at in range(0, len(coded), step)]
    assert decoded(coding, chunks) == body * frames


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 200_000])
def test_bodies_around_the_piece_size_are_whole(coding: str, size: int) -> None:
    body = b"a" * size
    assert decoded(coding, [COMPRESS[coding](body)]) == body


@pytest.mark.parametrize("coding", CODINGS)
def test_room_is_exact(coding: str) -> None:
    coded = COMPRESS[coding](b"x" * 1000)
    assert decoded(coding, [coded], room=1000) == b"x" * 1000
    with pytest.raises(OversizedBody):
        decoded(coding, [coded], room=999)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("kept", [1, 5, 12, -1])
def test_a_body_that_ends_early_is_corrupt(coding: str, kept: int) -> None:
    coded = COMPRESS[coding](b'{"state": "a text of some length"}')
    with pytest.raises(CorruptBody):
        decoded(coding, [coded[:kept]])


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("garbage", [b"no frame at all", b"{}", b"\x00" * 64, b"\xff" * 64])
def test_garbage_is_corrupt_alone_and_behind_a_frame(coding: str, garbage: bytes) -> None:
    with pytest.raises(CorruptBody):
        decoded(coding, [garbage])
    with pytest.raises(CorruptBody):
        decoded(coding, [COMPRESS[coding](b"{}") + garbage])


@pytest.mark.parametrize("coding", CODINGS)
def test_a_flipped_bit_never_escapes_as_another_error(coding: str) -> None:
    coded = bytearray(COMPRESS[coding](bytes(range(256)) * 8))
    for at in range(len(coded)):
        coded[at] ^= 0x10
        with suppress(CorruptBody, OversizedBody):
            decoded(coding, [bytes(coded)])
        coded[at] ^= 0x10


@pytest.mark.parametrize("coding", CODINGS)
def test_an_empty_body_is_empty(coding: str) -> None:
    assert decoded(coding, [b""]) == b""


def test_raw_deflate_is_not_taken_for_gzip() -> None:
    with pytest.raises(CorruptBody):
        decoded("gzip", [zlib.compress(b"{}")])


def test_a_window_beyond_8_mib_is_too_large() -> None:
    def frame(window_log: int) -> bytes:
        options = {zstd.CompressionParameter.window_log: window_log}
        compressor = zstd.ZstdCompressor(options=options)
        return compressor.compress(b"{}") + compressor.flush()

    assert decoded("zstd", [frame(23)]) == b"{}"
    with pytest.raises(OversizedBody):
        decoded("zstd", [frame(24)])


def test_a_frame_that_needs_a_dictionary_is_corrupt() -> None:
    samples = [b"the state of customer %d is pending" % number for number in range(500)]
    dictionary = zstd.train_dict(samples, 1024)
    with pytest.raises(CorruptBody):
        decoded("zstd", [zstd.compress(samples[0], zstd_dict=dictionary)])
