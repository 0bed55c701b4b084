"""Content codings of request bodies, undone piece by piece with a bound on what comes out.

A decoder never holds more than one piece of output beyond the room it was given, so a small body
that expands to gigabytes costs what the room allows. No I/O here; big pieces belong in a thread.
"""

import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# What RFC 9659 lets a sender of `Content-Encoding: zstd` ask for: 8 MiB.
_ZSTD_WINDOW_LOG = 23
_PIECE_BYTES = 64 * 1024


class CorruptBody(Exception):
    """The bytes are not what the content coding says they are, or they end too early."""


class OversizedBody(Exception):
    """The decoded bytes do not fit into the room that is left, or need too much memory."""


class _Frame(Protocol):
    """One gzip member or zstd frame being decoded."""

    @property
    def eof(self) -> bool:
        """Whether the frame is complete."""

    @property
    def unused_data(self) -> bytes:
        """What follows the complete frame."""

    def piece(self, coded: bytes) -> tuple[bytes, bytes | None]:
        """Decode at most `_PIECE_BYTES`.

        Args:
            coded: further input, or what the last call handed back.

        Returns:
            The output, and what to hand to the next call; `None` when new input is needed.
        """


class _GzipMember:
    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def piece(self, coded: bytes) -> tuple[bytes, bytes | None]:
        try:
            out = self._stream.decompress(coded, _PIECE_BYTES)
        except zlib.error as error:
            raise CorruptBody from error
        rest = self._stream.unconsumed_tail
        return out, rest if rest or len(out) == _PIECE_BYTES else None


class _ZstdFrame:
    def __init__(self) -> None:
        options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
        self._stream = zstd.ZstdDecompressor(options=options)

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def piece(self, coded: bytes) -> tuple[bytes, bytes | None]:
        try:
            out = self._stream.decompress(coded, _PIECE_BYTES)
        except zstd.ZstdError as error:
            # The binding has one exception for everything; the text is the zstd library's own.
            if "too much memory" in str(error):
                raise OversizedBody from error
            raise CorruptBody from error
        return out, None if self._stream.needs_input else b""


class Decoder:
    """Decodes one body that consists of any number of frames of one coding."""

    def __init__(self, new_frame: Callable[[], _Frame]) -> None:
        self._new_frame = new_frame
        self._frame: _Frame | None = None

    def feed(self, coded: bytes, room: int) -> bytes:
        """Decode the next bytes of the body.

        Args:
            coded: bytes as they were received.
            room: how many decoded bytes may come out.

        Raises:
            OversizedBody: more would come out, or the coding asks for too much memory.
            CorruptBody: the bytes do not follow the coding.
        """
        out: list[bytes] = []
        for start in range(0, len(coded), _PIECE_BYTES):
            for piece in self._pieces(coded[start : start + _PIECE_BYTES]):
                room -= len(piece)
                if room < 0:
                    raise OversizedBody
                out.append(piece)
        return b"".join(out)

    def _pieces(self, coded: bytes) -> Iterator[bytes]:
        rest: bytes | None = coded
        while rest is not None and (rest or self._frame is not None):
            if self._frame is None:
                self._frame = self._new_frame()
            piece, rest = self._frame.piece(rest)
            yield piece
            if self._frame.eof:
                rest = self._frame.unused_data
                self._frame = None

    def close(self) -> None:
        """Declare the body complete.

        Raises:
            CorruptBody: the last frame is not.
        """
        if self._frame is not None:
            raise CorruptBody


CODINGS: Mapping[str, Callable[[], _Frame]] = {
    "zstd": _ZstdFrame,
    "gzip": _GzipMember,
    "x-gzip": _GzipMember,
}
