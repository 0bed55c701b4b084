"""The keeper as a program of its own; what it does for the supervisor is in `test_supervisor`."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from backend import keeper

pytestmark = pytest.mark.process

SLEEP = "import time; time.sleep(300)"


def start(*argv):
    return subprocess.Popen(
        [sys.executable, *argv],
        cwd=Path(__file__).parent.parent.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )


def test_the_end_of_its_input_ends_the_command_and_its_children():
    family = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); "
    process = start(keeper.__file__, sys.executable, "-uc", f"{family}print('up'); {SLEEP}")
    assert process.stdout.readline() == "up\n"
    process.stdin.close()
    assert process.wait(10) == -signal.SIGKILL
    assert process.stdout.read() == ""  # nobody holds the pipe any more
    process.stdout.close()


def private(directory):
    """Two files, and the options that name them."""
    files = [directory / "one", directory / "two"]
    for file in files:
        file.touch()
    return files, [word for file in files for word in ("--remove", str(file))]


def test_private_files_do_not_outlive_the_starter(tmp_path):
    files, options = private(tmp_path)
    with start(keeper.__file__, *options, sys.executable, "-c", SLEEP) as process:
        process.stdin.close()
        assert process.wait(10) == -signal.SIGKILL
    assert not any(file.exists() for file in files)


def test_private_files_do_not_outlive_the_command(tmp_path):
    files, options = private(tmp_path)
    files[0].unlink()  # as the starter does when they are no longer needed
    with start(keeper.__file__, *options, sys.executable, "-c", "raise SystemExit(5)") as process:
        assert process.wait(10) == 5
    assert not any(file.exists() for file in files)


def test_a_request_to_end_that_comes_before_the_command_has_started_is_passed_on():
    early = (
        "import os, signal, subprocess, sys; from backend import keeper; start = subprocess.Popen\n"
        "def signalled(*args, **options):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return start(*args, **options)\n"
        "keeper.subprocess.Popen = signalled\n"
        f"sys.exit(keeper.main([sys.executable, '-c', {SLEEP!r}]))"
    )
    with start("-c", early) as process:
        assert process.wait(10) == 128 + signal.SIGTERM
