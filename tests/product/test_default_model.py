"""The default profile answers sensibly: the README's claims, on the real weights."""

import json
import time
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command

pytestmark = [pytest.mark.model, pytest.mark.timeout(1500)]

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.json"))


def example(name: str) -> dict:
    return json.loads((EXAMPLES[0].parent / name).read_text(encoding="utf-8"))


def answers_to(product, body: dict) -> dict:
    response = product.evaluate(body)
    assert response.status_code == 200, response.text
    return response.json()["answers"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_answered(product, path):
    body = json.loads(path.read_text(encoding="utf-8"))
    assert list(answers_to(product, body)) == list(body["questions"])


def test_the_readme_s_example_makes_sense(product):
    answers = answers_to(product, example("request.json"))
    assert answers["refund"]["noul"] > 0.7
    assert answers["department"]["probabilities"]["billing"] > 0.8
    assert round(answers["urgency"]["score"]) == 2


def test_the_order_of_options_does_not_decide(product):
    body = example("request.json")
    criteria = body["questions"]["department"]["criteria"]
    body["questions"]["department"]["criteria"] = dict(reversed(criteria.items()))
    assert answers_to(product, body)["department"]["probabilities"]["billing"] > 0.8


def test_what_nobody_asks_for_is_denied(product):
    body = example("request.json")
    body["questions"] = {
        "password": {"type": "noul", "instructions": "Does the user ask for a password reset?"}
    }
    assert answers_to(product, body)["password"]["noul"] < 0.5


@pytest.mark.parametrize("favourite", ["penguin", "bear", "zebra"])
def test_one_of_sixty_four_options_is_found(product, favourite):
    body = example("sixty-four-options.json")
    body["state"] = body["state"].replace("penguin", favourite)
    answer = answers_to(product, body)["favourite"]
    assert len(answer["probabilities"]) == 64
    assert answer["choice"] == favourite


def test_the_smoke_test_passes(product, tmp_path):
    report = tmp_path / "smoke.json"
    out = StringIO()
    call_command("smoke", product.url, "--output", str(report), stdout=out, no_color=True)
    assert json.loads(report.read_text())["verdict"] == "ok", out.getvalue()


def test_the_engine_fits_a_laptop_and_rests_when_idle(product):
    answers_to(product, example("request.json"))
    engine = product.engine()
    assert engine.memory_info().rss < 7e9
    before = engine.cpu_times()
    time.sleep(2)  # the span that is measured, not a wait for something to happen
    after = engine.cpu_times()
    assert (after.user + after.system) - (before.user + before.system) < 0.2
