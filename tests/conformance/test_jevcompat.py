"""The public conformance suite, run as its users run it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.conftest import Serve
from tests.support.served import Served

pytestmark = [pytest.mark.conformance, pytest.mark.process]

AS_HOSTED = {"OPENJEV_MAX_ANSWERS": "255", "OPENJEV_CONFIDENCE": "typesafe"}
NEEDS_A_KEY = {"auth.bearer", "auth.missing", "auth.invalid"}


class Verdict:
    """What `jevcompat test URL` found.

    Attributes:
        code: its exit code.
        shown: what it printed, to explain a failure.
        report: its JSON report.
    """

    def __init__(self, url: str, path: Path, *options: str) -> None:
        command = [str(Path(sys.executable).with_name("jevcompat")), "test", url]
        command += ["--json", str(path), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        self.code = done.returncode
        self.shown = done.stdout + done.stderr
        self.report = json.loads(path.read_text(encoding="utf-8"))

    def requirements(self, status: str) -> set[str]:
        return {result["id"] for result in self.report["results"] if result["status"] == status}


def test_every_requirement_is_met_without_a_key(serve_with: Serve, tmp_path: Path) -> None:
    verdict = Verdict(serve_with(**AS_HOSTED).url, tmp_path / "report.json")
    assert verdict.code == 0, verdict.shown
    assert verdict.requirements("fail") == set(), verdict.shown
    assert verdict.requirements("skip") == NEEDS_A_KEY, verdict.shown
    assert verdict.report["summary"]["MUST"]["passed"] == 32


def test_every_requirement_is_met_with_a_key(serve_with: Serve, tmp_path: Path) -> None:
    served = serve_with(OPENJEV_API_KEY="a-key-of-ours", **AS_HOSTED)
    verdict = Verdict(served.url, tmp_path / "report.json", "--key", "a-key-of-ours")
    assert verdict.code == 0, verdict.shown
    assert verdict.requirements("fail") == set(), verdict.shown
    assert verdict.requirements("skip") == {"auth.ignored-when-off"}, verdict.shown
    assert verdict.report["summary"]["MUST"]["passed"] == 32


def test_the_defaults_depart_in_exactly_two_points(default_product: Served, tmp_path: Path) -> None:
    verdict = Verdict(default_product.url, tmp_path / "report.json")
    assert verdict.requirements("fail") == {"choice.options", "confidence.formula"}, verdict.shown
    assert verdict.requirements("skip") == NEEDS_A_KEY, verdict.shown
    assert verdict.report["info"]["limits"]["choice options accepted up to"] == 64
