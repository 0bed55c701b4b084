"""The README keeps up with the code: settings, dependencies, routes, targets, examples."""

import re
from pathlib import Path

import pytest
from django.urls import get_resolver

from backend.config import SETTINGS
from backend.profiles import PROFILES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def requirements(name: str) -> list[str]:
    lines = (ROOT / name).read_text().splitlines()
    return [line.split("==")[0] for line in lines if "==" in line]


def default_of(setting) -> str:
    if setting.name in {"MODEL", "REVISION", "SERVED_MODEL_NAME"}:
        return "the profile's"
    return "unset" if setting.default is None else f"`{setting.default}`"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_is_in_the_table_with_default_range_and_meaning(setting):
    cells = (f"`OPENJEV_{setting.name}`", default_of(setting), setting.allowed, setting.meaning)
    assert f"| {' | '.join(cells)} |" in README


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_is_named(profile):
    assert f"`{profile}`" in README


@pytest.mark.parametrize("name", requirements("requirements.txt"))
def test_every_dependency_has_its_reason(name):
    assert re.search(rf"^\| `{re.escape(name)}` \| \S.+ \|$", README, re.MULTILINE)


@pytest.mark.parametrize(
    "file", sorted(path.name for path in ROOT.glob("requirements*.txt")), ids=str
)
def test_every_requirement_is_pinned(file):
    lines = (ROOT / file).read_text().splitlines()
    kept = [line for line in lines if line and not line.startswith(("#", "-r"))]
    assert kept
    assert all(re.fullmatch(r"[\w.-]+(\[\w+\])?==[\w.]+( ?;.+)?", line) for line in kept)


def test_every_make_target_of_the_help_exists():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^(?:.*`)?make ([a-z-]+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_public_route_is_named():
    for pattern in get_resolver().url_patterns:
        route = str(pattern.pattern).lstrip("^").rstrip("$")
        if "<" in route or route in {"", "favicon.ico"} or "(" in route:
            continue
        assert f"/{route}" in README, route


def test_every_example_is_mentioned_and_exists():
    named = set(re.findall(r"examples/([\w-]+\.json)", README))
    assert named == {path.name for path in (ROOT / "examples").glob("*.json")}


def test_every_link_to_a_file_leads_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
