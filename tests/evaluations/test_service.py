import asyncio
import math
import threading
from dataclasses import replace

import pytest

from backend.config import Config
from backend.errors import EngineProtocolError, EngineTimeout, EngineUnavailable
from evaluations.exceptions import DeadlineExceeded, InvalidRequest
from evaluations.questions import (
    ChoiceAnswer,
    ChoiceQuestion,
    EvaluationRequest,
    NoulAnswer,
    NoulQuestion,
    ScoreAnswer,
    ScoreQuestion,
)
from evaluations.readout import Readout
from evaluations.service import INLINE_CHARACTERS, evaluate
from tests.support.stand_in import Call, StandIn, first_label_wins

QUESTIONS = (
    NoulQuestion("refund", "Is a refund wanted?"),
    ChoiceQuestion("team", {"billing": "Money", "it": "Computers", "hr": None}),
    ScoreQuestion("urgency", ("low", "high")),
)
REQUEST = EvaluationRequest("jev-latest", "I was charged twice.", QUESTIONS)


async def forever(call: Call) -> tuple[float, ...]:
    await asyncio.Event().wait()
    raise AssertionError


def is_warm_up(call: Call) -> bool:
    return len(call.label_ids) == 1


async def test_every_question_is_answered_in_order(readout: Readout, config: Config) -> None:
    client = StandIn()
    evaluation = await evaluate(REQUEST, readout=readout, engine=client, config=config)
    assert list(evaluation.answers) == ["refund", "team", "urgency"]
    refund, team, urgency = evaluation.answers.values()
    assert isinstance(refund, NoulAnswer)
    assert refund.noul == pytest.approx(math.exp(-0.3) / (math.exp(-0.3) + math.exp(-1.4)))
    assert isinstance(team, ChoiceAnswer)
    assert team.choice == "billing"
    assert list(team.probabilities) == ["billing", "it", "hr"]
    assert isinstance(urgency, ScoreAnswer)
    assert urgency.legend == ("low", "high")


async def test_warm_up_comes_first_and_branches_share_its_prefix(
    readout: Readout, config: Config
) -> None:
    order: list[tuple[str, int]] = []

    async def answer(call: Call) -> tuple[float, ...]:
        order.append(("begin", len(call.label_ids)))
        await asyncio.sleep(0)
        order.append(("end", len(call.label_ids)))
        return await first_label_wins(call)

    client = StandIn(answer)
    evaluation = await evaluate(REQUEST, readout=readout, engine=client, config=config)
    assert order[:2] == [("begin", 1), ("end", 1)]
    assert [step for step, _ in order[2:]] == ["begin"] * 3 + ["end"] * 3
    warm_up, *branches = client.calls
    assert len(warm_up.input_ids) == evaluation.prefix_tokens
    for branch in branches:
        assert branch.input_ids[: evaluation.prefix_tokens] == warm_up.input_ids
        assert len(branch.input_ids) > evaluation.prefix_tokens
    assert [call.label_ids for call in client.calls] == [
        readout.label_ids(count) for count in (1, 2, 3, 2)
    ]


async def test_usage_is_what_the_engine_reports(readout: Readout, config: Config) -> None:
    client = StandIn()
    evaluation = await evaluate(REQUEST, readout=readout, engine=client, config=config)
    assert evaluation.input_tokens == sum(len(call.input_ids) for call in client.calls)
    assert evaluation.output_tokens == 4
    assert evaluation.cached_tokens == 21  # of three branches, not of the warm-up
    assert min(evaluation.timing.prepare, evaluation.timing.prefill) > 0
    assert evaluation.timing.branches > 0


async def test_unknown_cache_use_is_absent_not_zero(readout: Readout, config: Config) -> None:
    client = StandIn(cached_tokens=None)
    evaluation = await evaluate(REQUEST, readout=readout, engine=client, config=config)
    assert evaluation.cached_tokens is None


async def test_no_rid_begins_with_another_and_all_are_routed_together(
    readout: Readout, config: Config
) -> None:
    client = StandIn()
    questions = tuple(NoulQuestion(str(n), "?") for n in range(12))
    request = REQUEST._replace(questions=questions)
    await asyncio.gather(
        *(evaluate(request, readout=readout, engine=client, config=config) for _ in range(2))
    )
    rids = [call.rid for call in client.calls]
    assert len(set(rids)) == 26
    assert len({len(rid) for rid in rids}) == 1
    assert len({call.routing_key for call in client.calls}) == 2
    assert all(call.rid.startswith(call.routing_key + ".") for call in client.calls)


async def test_failed_branch_cancels_its_siblings(readout: Readout, config: Config) -> None:
    async def answer(call: Call) -> tuple[float, ...]:
        if is_warm_up(call):
            return (-1.0,)
        if len(call.label_ids) == 3:
            while client.under_way < 3:  # noqa: ASYNC110 - all three are under way
                await asyncio.sleep(0)
            raise EngineProtocolError("Nonsense.")
        return await forever(call)

    client = StandIn(answer)
    with pytest.raises(EngineProtocolError, match="Nonsense"):
        await evaluate(REQUEST, readout=readout, engine=client, config=config)
    assert len(client.cancelled) == 2
    assert client.under_way == 0


async def test_failed_warm_up_asks_no_branch(readout: Readout, config: Config) -> None:
    async def answer(call: Call) -> tuple[float, ...]:
        raise EngineUnavailable("Gone.")

    client = StandIn(answer)
    with pytest.raises(EngineUnavailable):
        await evaluate(REQUEST, readout=readout, engine=client, config=config)
    assert len(client.calls) == 1


@pytest.mark.parametrize("stuck", ["warm-up", "branches"])
async def test_deadline_cancels_everything(readout: Readout, config: Config, stuck: str) -> None:
    async def answer(call: Call) -> tuple[float, ...]:
        if is_warm_up(call) and stuck == "branches":
            return (-1.0,)
        return await forever(call)

    client = StandIn(answer)
    short = replace(config, request_timeout=0.2)
    with pytest.raises(DeadlineExceeded, match=r"longer than 0\.2 seconds"):
        await evaluate(REQUEST, readout=readout, engine=client, config=short)
    assert client.under_way == 0
    assert len(client.cancelled) == (1 if stuck == "warm-up" else 3)


async def test_deadline_ends_the_wait_for_a_long_text(
    readout: Readout, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(Readout, "prompt", lambda *_, **__: released.wait(10))
    client = StandIn()
    request = REQUEST._replace(state="word " * INLINE_CHARACTERS)
    short = replace(config, request_timeout=0.05)
    try:
        with pytest.raises(DeadlineExceeded, match=r"longer than 0\.05 seconds"):
            await evaluate(request, readout=readout, engine=client, config=short)
    finally:
        released.set()
    assert client.calls == []


async def test_engine_that_times_out_is_the_deadline(readout: Readout, config: Config) -> None:
    async def answer(call: Call) -> tuple[float, ...]:
        raise EngineTimeout("Too late.")

    with pytest.raises(DeadlineExceeded):
        await evaluate(REQUEST, readout=readout, engine=StandIn(answer), config=config)


async def test_one_deadline_holds_for_all_calls(readout: Readout, config: Config) -> None:
    client = StandIn()
    begun = asyncio.get_running_loop().time()
    await evaluate(REQUEST, readout=readout, engine=client, config=config)
    (deadline,) = {call.deadline for call in client.calls}
    assert 0 <= deadline - begun - config.request_timeout < 5


async def test_cancelled_evaluation_leaves_no_call_behind(readout: Readout, config: Config) -> None:
    under_way = asyncio.Event()

    async def answer(call: Call) -> tuple[float, ...]:
        if is_warm_up(call):
            return (-1.0,)
        if client.under_way == 3:
            under_way.set()
        return await forever(call)

    client = StandIn(answer)
    task = asyncio.create_task(evaluate(REQUEST, readout=readout, engine=client, config=config))
    await asyncio.wait_for(under_way.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.under_way == 0
    assert len(client.cancelled) == 3


@pytest.mark.parametrize(
    ("limits", "loc"),
    [
        ({"max_input_tokens": 60}, ("state",)),
        ({"max_input_tokens": 260}, ("questions", "long")),
        ({"max_total_input_tokens": 300}, ("questions",)),
    ],
)
async def test_budgets_are_checked_before_any_engine_call(
    readout: Readout, config: Config, limits: dict[str, int], loc: tuple[str, ...]
) -> None:
    client = StandIn()
    questions = (*QUESTIONS, NoulQuestion("long", "xyz " * 40))
    with pytest.raises(InvalidRequest) as refused:
        await evaluate(
            REQUEST._replace(questions=questions),
            readout=readout,
            engine=client,
            config=replace(config, **limits),
        )
    assert loc in [fault.loc for fault in refused.value.faults]
    assert client.calls == []


async def test_huge_state_is_refused_quickly_while_the_loop_runs(
    readout: Readout, config: Config
) -> None:
    loop = asyncio.get_running_loop()
    request = REQUEST._replace(state="No word of this is in the vocabulary. " * 50_000)
    begun = loop.time()
    task = asyncio.create_task(evaluate(request, readout=readout, engine=StandIn(), config=config))
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0.001)
    assert loop.time() - begun < 1
    assert turns > 3
    with pytest.raises(InvalidRequest):
        await task


async def test_settings_shape_the_answer(readout: Readout, config: Config) -> None:
    request = REQUEST._replace(questions=QUESTIONS[1:2])
    answers = []
    for temperature, confidence in ((1.0, "entropy"), (1.0, "typesafe"), (5.0, "entropy")):
        changed = replace(config, temperature=temperature, confidence=confidence)  # type: ignore[arg-type]
        evaluation = await evaluate(request, readout=readout, engine=StandIn(), config=changed)
        answers.append(evaluation.answers["team"])
    plain, typesafe, warm = answers
    assert isinstance(plain, ChoiceAnswer)
    assert isinstance(typesafe, ChoiceAnswer)
    assert isinstance(warm, ChoiceAnswer)
    assert plain.probabilities == typesafe.probabilities
    assert plain.confidence != typesafe.confidence
    assert warm.confidence < plain.confidence
