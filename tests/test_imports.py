"""Imports run one way, what is pure loads no framework, and each package says what is in it."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PURE = ("questions", "prompts", "labels", "scoring")
LOADED = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(f"evaluations.{name}")
print(*(name for name in ("django", "rest_framework", "aiohttp", "httpx") if name in sys.modules))
"""


def imported_by(package: str) -> Iterator[str]:
    """Every module that a package names in an import, wherever it stands."""
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.module or ""


@pytest.mark.parametrize(
    ("package", "above"),
    [("backend", {"evaluations", "openjev_site"}), ("evaluations", {"openjev_site"})],
)
def test_a_package_imports_none_above_it(package: str, above: set[str]) -> None:
    imported = {name.partition(".")[0] for name in imported_by(package)}
    assert imported & {"backend", "evaluations"}, "nothing was looked at"
    assert not imported & above


def test_what_is_pure_loads_no_framework() -> None:
    command = [sys.executable, "-c", LOADED, *PURE]
    loaded = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


@pytest.mark.parametrize("package", ["backend", "backend/serving", "backend/sglang", "evaluations"])
def test_every_module_has_its_place_in_the_packages_map(package: str) -> None:
    folder = ROOT / package
    parts = {path.stem for path in folder.glob("*.py")} | {
        path.parent.name for path in folder.glob("*/__init__.py")
    }
    listed = re.findall(
        r"`(\w+)`", ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    )
    assert parts - {"__init__", "management"} <= {*listed}
