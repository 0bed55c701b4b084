"""Bodies of which a little becomes very much, and what they cost whoever unpacks them."""

import gzip
from pathlib import Path

from openjev_site.decoding import zstd


def zstd_bomb() -> bytes:
    """One frame of 2.5 GiB in about 80 KB."""
    compressor = zstd.ZstdCompressor()
    megabyte = bytes(2**20)
    return b"".join(compressor.compress(megabyte) for _ in range(2560)) + compressor.flush()


def gzip_bomb() -> bytes:
    """80 members of 16 MiB each in about 1.3 MB."""
    return gzip.compress(bytes(2**24)) * 80


def forget_peak(pid: int | str = "self") -> int:
    """Begin the measurement of a process's highest memory use anew; return what it uses, in KiB."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak_kib(pid)


def peak_kib(pid: int | str = "self") -> int:
    """The most memory that a process has held since `forget_peak`, in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])
