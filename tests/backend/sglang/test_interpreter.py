"""The interpreter that has SGLang: found, asked, and told about where it has none."""

import sys
from pathlib import Path

import pytest

from backend.launch import LaunchError
from backend.sglang.interpreter import installed_version, interpreter
from tests.support.interpreter import write_interpreter


def test_an_interpreter_is_found_by_path_or_name_and_stays_in_its_environment(
    tmp_path, monkeypatch
):
    real = write_interpreter(tmp_path / "real")
    link = tmp_path / "bin" / "python"
    link.parent.mkdir()
    link.symlink_to(real)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(link.parent))
    assert interpreter("bin/python") == interpreter("python") == link


def test_an_environment_named_instead_of_its_interpreter_gets_a_hint(tmp_path):
    write_interpreter(tmp_path / "bin" / "python")
    with pytest.raises(LaunchError, match=rf"Did you mean {tmp_path}/bin/python\?"):
        interpreter(str(tmp_path))
    with pytest.raises(LaunchError, match="no program that can be run"):
        interpreter(str(tmp_path / "missing"))


def test_the_interpreter_is_asked_for_its_sglang(tmp_path):
    assert installed_version(write_interpreter(tmp_path / "python", "0.5.23")) == "0.5.23"


def test_what_an_interpreter_says_at_every_start_is_not_taken_for_its_answer(tmp_path):
    noisy = write_program(tmp_path / "python", r"printf 'caf\351\n'; echo 0.5.23")
    assert installed_version(noisy) == "0.5.23"


def test_an_interpreter_without_sglang_is_told_how_to_get_it(tmp_path):
    with pytest.raises(LaunchError, match=r"has no SGLang\. .* install sglang==0\.5\.19"):
        installed_version(write_interpreter(tmp_path / "python", ""))


def test_the_question_for_the_version_works_in_a_real_interpreter():
    with pytest.raises(LaunchError, match="has no SGLang"):
        installed_version(Path(sys.executable))


@pytest.mark.parametrize("program", ["/bin/false", "/etc/hostname"])
def test_what_is_no_python_is_told(program):
    with pytest.raises(LaunchError, match=f"{program}, which does not work as a Python"):
        installed_version(Path(program))


def test_why_a_program_does_not_work_is_told_in_its_own_last_words(tmp_path):
    program = write_program(
        tmp_path / "python", "echo first >&2; echo 'No such option: -c' >&2; exit 2"
    )
    with pytest.raises(LaunchError) as refused:
        installed_version(program)
    assert "interpreter: it ended with exit code 2, No such option: -c. Name" in str(refused.value)


def test_a_program_that_never_answers_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("backend.sglang.interpreter._ASK_SECONDS", 0.1)
    with pytest.raises(LaunchError, match=r"it gave no answer within 0\.1 seconds\. Name"):
        installed_version(write_program(tmp_path / "python", "exec sleep 60"))


def write_program(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
