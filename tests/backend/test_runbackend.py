"""The command line of `runbackend`."""

import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from backend.launch import LaunchError
from backend.management.commands import runbackend
from backend.options import Options
from backend.profiles import PROFILES

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def given(monkeypatch):
    calls = []

    def serve(options, *, say, check):
        calls.append(options)
        say("started")
        return 0

    monkeypatch.setattr(runbackend, "serve", serve)
    return calls


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        call_command("runbackend", *arguments)
    return ended.value.code


def test_defaults(given, capsys):
    assert run() == 0
    assert given == [Options(None, "127.0.0.1", 8000, 30000, None, False)]
    assert capsys.readouterr().out == "started\n"


def test_every_option_arrives(given):
    run("--profile", "qwen36", "--host", "::", "--port", "80", "--connect", "http://gpu:1")
    run("--backend-port", "65535", "--engine-only")
    run("--sglang-python", "python", "--frontend", "python", "--print-command")
    run("--server", "uvicorn", "--workers", "64")
    assert given == [
        Options("qwen36", "::", 80, 30000, "http://gpu:1", False),
        Options(None, "127.0.0.1", 8000, 65535, None, True),
        Options(sglang_python="python", frontend="python", print_command=True),
        Options(server="uvicorn", workers=64),
    ]


def test_what_follows_two_dashes_is_sglangs(given):
    run("--sglang-python", "python", "--port", "80", "--", "--device", "cpu", "--port=1", "--tp")
    assert given == [
        Options(
            sglang_python="python", port=80, sglang_flags=("--device", "cpu", "--port=1", "--tp")
        )
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--port", "0"),
        ("--port", "65536"),
        ("--port", "http"),
        ("--port", "-1"),
        ("--profile", "gpt"),
        ("--frontend", "go"),
        ("--server", "go"),
        ("--workers", "0"),
        ("--workers", "65"),
        ("--workers", "many"),
        ("--connect", "http://gpu:1", "--engine-only"),
    ],
)
def test_what_cannot_be_meant_is_refused(given, arguments):
    with pytest.raises((CommandError, SystemExit)):
        call_command("runbackend", *arguments)
    assert given == []


def test_reasons_not_to_start_are_sentences_not_tracebacks(monkeypatch):
    def serve(options, *, say, check):
        raise LaunchError("Port 8000 is already in use.")

    monkeypatch.setattr(runbackend, "serve", serve)
    with pytest.raises(CommandError, match="Port 8000 is already in use"):
        call_command("runbackend")


def test_an_interrupted_download_is_130(monkeypatch):
    def serve(options, *, say, check):
        raise KeyboardInterrupt

    monkeypatch.setattr(runbackend, "serve", serve)
    with pytest.raises(CommandError) as caught:
        call_command("runbackend")
    assert caught.value.returncode == 130


@pytest.mark.process
def test_help_needs_no_model_and_names_every_profile():
    shown = subprocess.run(
        [sys.executable, "manage.py", "runbackend", "--help"],
        cwd=ROOT,
        env={"OPENJEV_WEIGHTS_DIR": "/nonexistent", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for profile in PROFILES.values():
        assert profile.summary in shown
    assert "--connect" in shown
    assert "--sglang-python /opt/sglang/bin/python -- --mem-fraction-static" in shown


@pytest.mark.process
def test_the_command_is_shown_where_there_is_no_sglang():
    options = ["--sglang-python", "/nowhere/python", "--print-command", "--", "--dtype", "half"]
    shown = subprocess.run(
        [sys.executable, "manage.py", "runbackend", *options],
        cwd=ROOT,
        env={"PATH": "", "OPENJEV_BACKEND_API_KEY": "sesame", "OPENJEV_FRONTEND": "python"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "/nowhere/python -m sglang.launch_server" in shown
    assert "--dtype half" in shown
    assert "sesame" not in shown


@pytest.mark.process
def test_a_bad_setting_is_named_and_nothing_starts():
    ended = subprocess.run(
        [sys.executable, "manage.py", "runbackend"],
        cwd=ROOT,
        env={"OPENJEV_MAX_ANSWERS": "1000", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "OPENJEV_MAX_ANSWERS is '1000'. It must be" in ended.stderr
    assert "Traceback" not in ended.stderr
