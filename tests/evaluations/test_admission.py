import pytest
from django.conf import settings

from backend.serving.share import Share
from evaluations import runtime
from evaluations.admission import Admission, check_budgets
from evaluations.exceptions import Fault, InvalidRequest, Overloaded


def test_one_more_than_allowed_is_refused_at_once_and_places_come_back() -> None:
    admission = Admission(2, Share())
    with admission, admission:
        with pytest.raises(Overloaded, match="2 evaluations are running"), admission:
            pytest.fail("a third place was given out")
        assert admission.running == 2
    assert admission.running == 0
    with pytest.raises(ZeroDivisionError), admission:
        raise ZeroDivisionError
    assert admission.running == 0


def test_places_are_shared_with_other_processes() -> None:
    running = [0, 0, 0]
    first, last = (Admission(2, Share(running, index)) for index in (0, 2))
    with first, last:
        assert running == [1, 0, 1]
        for admission in (first, last):
            with pytest.raises(Overloaded), admission:
                pytest.fail("a third place was given out")
        assert running == [1, 0, 1]
    assert running == [0, 0, 0]


def test_engine_calls_are_shared_out_and_places_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(settings, "OPENJEV_SHARE", Share([7, 8, 0], 1))
    monkeypatch.setattr(
        runtime, "EngineClient", lambda url, *, api_key, max_in_flight: given.append(max_in_flight)
    )
    runtime.get_runtime.cache_clear()
    try:
        assert runtime.get_runtime()._admission.running == 15
    finally:
        runtime.get_runtime.cache_clear()
    assert given == [21]


def refused(prefix: int, suffixes: list[int], branch: int, total: int) -> tuple[Fault, ...]:
    names = [f"q{n}" for n in range(len(suffixes))]
    with pytest.raises(InvalidRequest) as error:
        check_budgets(
            prefix, suffixes, names, max_input_tokens=branch, max_total_input_tokens=total
        )
    return error.value.faults


def test_output_token_counts_towards_a_branch() -> None:
    check_budgets(90, [9], ["q"], max_input_tokens=100, max_total_input_tokens=1000)
    (fault,) = refused(90, [10], 100, 1000)
    assert fault.loc == ("questions", "q0")
    assert "needs 101 tokens, 90 of them for the state" in fault.message
    assert "may have 100" in fault.message


def test_every_question_over_its_budget_and_the_total_are_named() -> None:
    faults = refused(50, [60, 10, 70], 100, 300)
    assert [fault.loc for fault in faults] == [
        ("questions", "q0"),
        ("questions", "q2"),
        ("questions",),
    ]
    assert "340 input tokens" in faults[-1].message  # 50 + 110 + 60 + 120
    assert "limit is 300" in faults[-1].message


def test_warm_up_counts_towards_the_total() -> None:
    check_budgets(50, [10, 10], ["a", "b"], max_input_tokens=100, max_total_input_tokens=170)
    (fault,) = refused(50, [10, 10], 100, 169)
    assert fault.loc == ("questions",)


def test_state_that_leaves_no_room_is_named_once() -> None:
    (fault,) = refused(99, [5, 5], 100, 10_000)
    assert fault.loc == ("state",)
    assert "99 tokens" in fault.message
    assert "100" in fault.message


def test_long_question_ids_are_shortened_in_the_sentence_only() -> None:
    name = "x" * 1000
    with pytest.raises(InvalidRequest) as error:
        check_budgets(5, [100], [name], max_input_tokens=50, max_total_input_tokens=1000)
    (fault,) = error.value.faults
    assert fault.loc == ("questions", name)
    assert len(fault.message) < 300
