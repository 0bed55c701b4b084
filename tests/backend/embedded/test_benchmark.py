"""The engine's benchmark measures what it says, here on the tiny model."""

from pathlib import Path

import pytest

from backend.embedded.model import Model
from backend.embedded.scheduler import MAX_PASS_TOKENS
from backend.embedded.threads import ComputePool
from benchmarks.embedded import growth, prefill, ways
from benchmarks.embedded.__main__ import main
from benchmarks.embedded.asking import Work
from benchmarks.embedded.growth import Point
from benchmarks.embedded.taken import Taken


def work(*, state: int = 40, questions: int = 3) -> Work:
    return Work.random(851, state=state, questions=questions, question_tokens=5)


def test_every_way_of_asking_gives_the_same_answers(tiny_model: Model) -> None:
    asked = ways.measure(tiny_model, work(), rounds=2)
    assert asked.apart < 1e-5
    assert asked.questions == 3
    times = (asked.state, asked.alone, asked.in_turn, asked.packed, asked.again)
    assert all(taken.seconds > 0 for taken in times)
    assert str(asked).count("|\n") == 3


def test_bare_products_are_those_of_the_linear_layers(
    tiny_gguf: Path, tiny_model: Model, pool: ComputePool
) -> None:
    a = tiny_model.architecture
    keys = a.key_heads * a.head_size
    weights = 2 * a.width * (a.width + keys) + 3 * a.width * a.hidden
    products = prefill.BareProducts(tiny_gguf, pool)
    assert products.operations(10) == 2 * 10 * a.layers * weights
    state = work(state=MAX_PASS_TOKENS + 3).state
    read = prefill.measure(tiny_model, products, state, rounds=2)
    assert read.tokens == 2 * len(state)
    assert read.share == read.products.seconds / read.engine.seconds


def test_growth_is_measured_at_every_size(tiny_model: Model) -> None:
    points = growth.over_questions(tiny_model, work(questions=5))
    assert [point.questions for point in points] == [1, 2, 4]
    longer = growth.over_states(tiny_model, work(), lengths=(10, 40))
    assert [point.state_tokens for point in longer] == [10, 40]
    assert growth.table(points).count("\n") == 4


def test_many_questions_are_compared_with_whole_requests() -> None:
    single = Point(2000, 1, Taken(80, 8), Taken(1, 1))
    many = Point(2000, 64, Taken(1, 8), Taken(1, 28))
    assert growth.to_single(many, single) == pytest.approx(36 / (9 * 64))
    assert "0.062" in growth.table([single, many])


def test_times_add_up() -> None:
    assert (Taken(1, 2) + Taken(2, 3)) * 2 == Taken(6, 10)


def test_sizes_that_no_goal_is_set_for_are_not_judged_by_them(
    tiny_gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--prefix", "30", "--questions", "2", "--question-tokens", "5"]
    main(["--gguf", str(tiny_gguf), "--only", "ways", "prefill", "--rounds", "1", *sizes])
    goals = capsys.readouterr().out.rpartition("\n\n")[2].splitlines()
    judged = [goal for goal in goals if not goal.startswith("not judged  ")]
    assert len(goals) == 5
    assert [goal.partition(":")[0] for goal in judged] == [
        "met     difference of probabilities between the ways"
    ]
