"""What a user sees of a download."""

import pytest

from backend.embedded.progress import Progress


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


def test_bar_that_never_moved_is_wiped_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress("file", 1000, enabled=True):
        pass
    assert capsys.readouterr().err.rpartition("\r")[0].rpartition("\r")[2].strip() == ""


def test_progress_can_be_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("file", 1000, enabled=False) as progress:
        progress.show(1000)
    assert capsys.readouterr().err == ""
