"""How the benchmarks judge what they measure."""

import json
import subprocess
import sys
from itertools import islice
from math import nan
from pathlib import Path

import pytest

import benchmarks
from benchmarks.api.bodies import evaluations, many_questions
from benchmarks.api.curves import Curve
from benchmarks.api.goals import Goal, settle
from benchmarks.api.rows import Row, goals, table
from benchmarks.api.servers import AIOHTTP, UVICORN

ROOT = Path(__file__).parent.parent
SIZES = (1, 2, 4, 8, 16, 32, 48, 64)


def row(stack: str, **changes: float) -> Row:
    usual = {"delay": 0.0, "connections": 16, "rate": 100.0, "p50": 10.0, "p95": 20.0}
    return Row(stack, **{**usual, "p99": 30.0, "cpu": 1.0, "errors": 0, **changes})  # type: ignore[arg-type]


def missed(rows: list[Row]) -> list[str]:
    return [goal.what for goal in goals(rows) if not goal.is_met]


def test_a_straight_line_is_linear_and_a_parabola_is_not() -> None:
    straight = Curve("it", "questions", {size: 0.8 + 0.1 * size for size in SIZES})
    assert straight.line() == pytest.approx((0.8, 0.1, 1.0))
    assert straight.dearer() == pytest.approx(1.0)
    assert straight.goal().is_met
    bent = Curve("it", "questions", {size: 0.8 + 0.01 * size**2 for size in SIZES})
    assert not bent.goal().is_met


def test_a_figure_that_is_no_number_meets_no_goal() -> None:
    for at_least in (True, False):
        assert not Goal("latency", nan, 1.0, at_least=at_least).is_met


def test_one_missed_goal_fails_the_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    settle([Goal("latency", 1.0, 1.0)])
    with pytest.raises(SystemExit) as ended:
        settle([Goal("latency", 1.0, 1.0), Goal("rate", 1.0, 2.0, at_least=True)])
    assert ended.value.code == 1
    assert capsys.readouterr().out.splitlines()[-1] == "MISSED  rate: 1 (at least 2)"


def test_a_goal_for_something_else_is_told_and_not_judged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settle([Goal("latency", 2.0, 1.0, applies=False)])
    assert capsys.readouterr().out == "not judged  latency: 2 (at most 1)\n"


def test_openjev_is_judged_beside_the_others() -> None:
    assert missed([row(AIOHTTP), row(UVICORN, cpu=0.5)]) == []
    slow, tail, errors = (
        [row(AIOHTTP), row(UVICORN, **{"cpu": 0.5, **change})]
        for change in ({"cpu": 0.51}, {"p99": 51.0}, {"errors": 1})
    )
    assert [len(missed(rows)) for rows in (slow, tail, errors)] == [1, 1, 1]
    assert missed([row(UVICORN, connections=1, p50=3.1)]) == [
        f"{UVICORN}: p50 in ms at one connection, engine at once"
    ]


def test_the_table_tells_ratios_to_the_first() -> None:
    lines = table([row(AIOHTTP), row(UVICORN, rate=250.0, cpu=0.5)]).splitlines()
    assert lines[-1].startswith(f"| {UVICORN} | 250 | 2.50 |")
    assert lines[-1].endswith("| 0.50 | 2.00 | 0 |")


def test_no_two_evaluations_are_about_the_same_state() -> None:
    made = [json.loads(body) for body in islice(evaluations(many_questions(64)), 20)]
    assert len({body["state"] for body in made}) == 20
    assert len({str(question) for question in made[0]["questions"].values()}) == 64
    first, second = islice(evaluations(fresh=True), 2)
    assert json.loads(first)["questions"] != json.loads(second)["questions"]


@pytest.mark.process
@pytest.mark.parametrize("name", ["api", "api.stalls", "transport", "embedded"])
def test_a_benchmark_says_in_a_sentence_what_to_install(name: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-S", "-m", f"benchmarks.{name}", "--help"],  # -S: nothing is installed
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "is not installed, which this benchmark needs. Run `" in line
    assert line.endswith(" -m pip install -r requirements-bench.txt`.")


def test_other_failures_of_a_benchmark_keep_their_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for error in (ValueError("odd"), ModuleNotFoundError("odd", name="benchmarks.odd")):
        benchmarks.tell_missing(type(error), error, None)
        assert capsys.readouterr().err.endswith("Error: odd\n")
