"""docs/operations.md keeps up with the code: messages, settings, profiles, the two images."""

import ast
import re
from pathlib import Path

import pytest

import modal_deploy
from backend.config import SETTINGS
from backend.profiles import PROFILES

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
FAILURES = PAGE.partition("## When something fails")[2]
SOURCES = [
    ROOT / "modal_deploy.py",
    *(path for package in ("backend", "evaluations") for path in (ROOT / package).rglob("*.py")),
    *(ROOT / "openjev_site").rglob("*.py"),
]


def texts_in(node: ast.AST) -> list[str]:
    """Every string of a module, with a gap where a value is put in."""
    found = []
    for one in ast.walk(node):
        if isinstance(one, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "\0" for p in one.values)
            found.append("".join(map(str, parts)))
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            found.append(re.sub(r"%[sdgr]|%\.\df", "\0", one.value))
    return found


@pytest.fixture(scope="module")
def texts():
    return [text for path in SOURCES for text in texts_in(ast.parse(path.read_text()))]


MESSAGES = [
    message
    for row in re.findall(r"^\| (`.+?) \|", FAILURES, re.MULTILINE)
    for message in re.findall(r"`([^`]+)`", row)
    if "POST" not in message  # the form of a request's line has its own tests
]


@pytest.mark.parametrize("message", MESSAGES)
def test_every_quoted_message_can_be_logged(texts, message):
    pieces = [piece.strip() for piece in message.split("…") if piece.strip()]
    for piece in pieces:
        assert any(piece in text for text in texts), piece


def test_there_are_messages_to_look_for():
    assert len(MESSAGES) > 10


def test_every_setting_that_is_named_exists():
    assert set(re.findall(r"OPENJEV_([A-Z_]+)", PAGE)) <= {setting.name for setting in SETTINGS}


def test_every_profile_for_a_gpu_is_named():
    assert all(f"`{p.name}`" in PAGE for p in PROFILES.values() if p.engine == "sglang")


def test_the_container_is_built_as_on_modal():
    dockerfile = re.search(r"```dockerfile\n(.*?)```", PAGE, re.DOTALL)
    assert dockerfile is not None
    lines = dockerfile[1].splitlines()
    assert lines[0] == f"FROM {modal_deploy.SGLANG_IMAGE}"
    assert [line.removeprefix("RUN ") for line in lines if line.startswith("RUN")] == list(
        modal_deploy.INSTALL
    )


def test_the_figures_of_modal_are_those_of_the_deployment():
    assert f"every {modal_deploy.TARGET_CONCURRENCY} evaluations" in PAGE
    assert f"idle for {modal_deploy.IDLE_SECONDS} seconds" in PAGE
    assert f"within {modal_deploy.STARTUP_SECONDS // 60} minutes" in PAGE
    assert f"gets {modal_deploy.EXIT_GRACE_SECONDS} seconds" in PAGE
    assert f"may take {modal_deploy.DRAIN_SECONDS} of them" in PAGE


def test_every_link_to_a_file_leads_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
