"""What the README tells people to type works as it stands."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
REQUESTS = [
    f"curl {command}".strip()
    for language, block in BLOCKS
    if language == "sh"
    for command in block.split("curl ")[1:]
]
PROGRAMS = [block for language, block in BLOCKS if language == "python"]


def here(text: str, url: str) -> str:
    assert "http://127.0.0.1:8000" in text
    return text.replace("http://127.0.0.1:8000", url)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("command", REQUESTS, ids=range(len(REQUESTS)))
def test_every_curl_is_answered(tiny_shared, command):
    shell = here(command, tiny_shared.url)
    printed = subprocess.run(shell, shell=True, cwd=ROOT, capture_output=True, check=True).stdout  # noqa: S602
    assert json.loads(printed)["answers"]


def test_there_is_a_curl_for_every_type():
    for type_ in ("noul", "choice", "score"):
        assert any(f'"type": "{type_}"' in command for command in REQUESTS)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_every_program_runs(tiny_shared, program, capsys):
    exec(compile(here(program, tiny_shared.url), "README.md", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out.strip()
