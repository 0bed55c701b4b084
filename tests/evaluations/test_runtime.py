import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from backend.config import Config
from backend.description import EngineDescription
from backend.errors import (
    EngineBusy,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
    TokenizerError,
    UnusableLogprobs,
)
from backend.tokenizer import ChatTokenizer
from backend.vocabulary import vocabulary_from_gguf
from evaluations import runtime as module
from evaluations import start
from evaluations.exceptions import NotReady, Overloaded, UnknownModel
from evaluations.questions import EvaluationRequest, NoulQuestion
from evaluations.runtime import Runtime, get_runtime
from tests.support.stand_in import Call, StandIn

REQUEST = EvaluationRequest("jev-latest", "It is raining.", (NoulQuestion("q", "Is it wet?"),))

Make = Callable[..., Runtime]


@pytest.fixture
def client() -> StandIn:
    return StandIn()


@pytest.fixture
async def make(
    client: StandIn, config: Config, tiny_tokenizer: ChatTokenizer
) -> AsyncIterator[Make]:
    """Build runtimes on the stand-in and the tiny tokenizer; all are stopped at the end."""
    made: list[Runtime] = []

    def build(**changes: object) -> Runtime:
        load = changes.pop("load", lambda config: tiny_tokenizer)
        runtime = Runtime(replace(config, **changes), client, load)  # type: ignore[arg-type]
        made.append(runtime)
        return runtime

    yield build
    for runtime in made:
        await runtime.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the state has no event to wait for
            await asyncio.sleep(0.005)


async def refused(runtime: Runtime) -> None:
    """What failed is for the log: it may name files and addresses."""
    assert await runtime.health() == "unavailable"
    with pytest.raises(NotReady) as error:
        await runtime.evaluate(REQUEST)
    assert str(error.value) == (
        "The model could not be made ready; the server's log says why. Try again later."
    )


async def reason(runtime: Runtime) -> str:
    """Why the runtime refuses for good; it must say so soon."""
    async with asyncio.timeout(20):
        return await runtime.refused()


async def ready(runtime: Runtime) -> Runtime:
    runtime.start()
    await until(lambda: runtime.status == "ok")
    return runtime


async def test_becomes_ready_and_answers(make: Make, client: StandIn) -> None:
    runtime = make()
    assert runtime.status == "starting"
    assert runtime.startup_seconds is None
    await ready(runtime)
    assert runtime.startup_seconds is not None
    assert runtime.readout is not None
    evaluation = await runtime.evaluate(REQUEST)
    assert list(evaluation.answers) == ["q"]
    assert await runtime.health() == "ok"


async def test_second_start_changes_nothing(make: Make) -> None:
    loads: list[str] = []
    runtime = make()
    load = runtime._start._load

    def counted(config: Config) -> ChatTokenizer:
        loads.append("load")
        return load(config)

    runtime._start._load = counted
    runtime.start()
    runtime.start()
    await ready(runtime)
    runtime.start()
    assert loads == ["load"]


async def test_before_it_is_ready_it_says_so(make: Make, client: StandIn) -> None:
    client.reachable = False
    runtime = make()
    with pytest.raises(NotReady, match="still being loaded"):
        await runtime.evaluate(REQUEST)
    runtime.start()
    assert await runtime.health() == "starting"
    assert runtime.startup_seconds is None
    assert client.calls == []


async def test_engine_that_comes_late_is_waited_for(
    make: Make,
    client: StandIn,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(start, "_RETRY_SECONDS", 0.01)
    caplog.set_level(logging.INFO)
    client.reachable = False
    runtime = make(startup_timeout=0.05)
    runtime.start()
    await until(lambda: runtime.status == "unavailable")
    await refused(runtime)
    waiting, late = caplog.messages  # a reason that stays the same is not repeated
    assert waiting.endswith(": The engine cannot be reached.")
    assert "OPENJEV_STARTUP_TIMEOUT" in late
    assert "still being waited for" in late
    assert not runtime._start._refused.is_set()  # it may yet come, and does
    client.reachable = True
    await until(lambda: runtime.status == "ok")
    await runtime.evaluate(REQUEST)


async def test_probe_that_fails_is_asked_again(
    make: Make, client: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_RETRY_SECONDS", 0.01)
    answer = client.answer
    failures = 2

    async def flaky(call: Call) -> tuple[float, ...]:
        nonlocal failures
        if failures:
            failures -= 1
            raise EngineUnavailable("Not yet.")
        return await answer(call)

    client.answer = flaky
    await ready(make())
    assert failures == 0


async def test_engine_that_does_not_fit_is_refused_until_another_takes_its_place(
    make: Make,
    client: StandIn,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(start, "_RETRY_REFUSED_SECONDS", 0.01)
    client.model = "other/model"
    runtime = make()
    runtime.start()
    assert "serves 'other/model'" in await reason(runtime)
    await refused(runtime)
    await until(lambda: client.described > 2)
    assert caplog.messages == [await reason(runtime)]  # said once, however often it is tried
    client.model = "tiny/random"
    await until(lambda: runtime.status == "ok")
    assert not runtime._start._refused.is_set()
    await runtime.evaluate(REQUEST)


@pytest.mark.parametrize(
    "error",
    [EngineRejected("The engine refused the call: status 400.", status=400),
     UnusableLogprobs("The engine gave a log-probability that is not one.")],
)  # fmt: skip
async def test_probe_that_can_never_succeed_is_a_refusal(
    make: Make, client: StandIn, error: Exception
) -> None:
    async def fails(call: Call) -> tuple[float, ...]:
        if len(call.input_ids) == 1:
            return (-1.0,)
        raise error

    client.answer = fails
    runtime = make()
    runtime.start()
    assert str(error) in await reason(runtime)
    await refused(runtime)


async def test_engine_is_described_in_one_line(
    make: Make,
    client: StandIn,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(start, "_RETRY_SECONDS", 0.01)
    caplog.set_level(logging.INFO)
    answer, failures = client.answer, 3

    async def flaky(call: Call) -> tuple[float, ...]:
        nonlocal failures
        if len(call.input_ids) > 1 and failures:
            failures -= 1
            raise EngineUnavailable("Not yet.")
        return await answer(call)

    client.answer = flaky
    await ready(make(backend_api_key="k3y"))
    assert client.described == 4
    (line,) = [text for text in caplog.messages if text.startswith("Found at")]
    assert "SGLang 1, Python front" in line
    assert "k3y" not in caplog.text


async def test_what_cannot_be_seen_of_an_engine_is_warned_of(
    make: Make, client: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    client.max_input_tokens = None
    await ready(make())
    assert "does not tell the context length" in caplog.text


async def test_tokenizer_that_does_not_fit_is_logged_in_its_own_sentence(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def load(config: Config) -> ChatTokenizer:
        raise TokenizerError("The tokenizer in /home/me/x.gguf is of kind 'martian'.")

    runtime = make(load=load)
    runtime.start()
    assert await reason(runtime) == "The tokenizer in /home/me/x.gguf is of kind 'martian'."
    assert caplog.messages == [await reason(runtime)]
    await refused(runtime)


async def test_too_few_labels_are_a_reason(
    make: Make, tiny_gguf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def load(config: Config) -> ChatTokenizer:
        tokenizer = ChatTokenizer(vocabulary_from_gguf(tiny_gguf))
        whole = tokenizer.encode_texts

        def without_last_letters(texts: Sequence[str]) -> list[list[int]]:
            pairs = zip(texts, whole(texts), strict=True)
            return [ids + ids[-1:] if text.endswith(tuple("VWXYZ")) else ids for text, ids in pairs]

        tokenizer.encode_texts = without_last_letters  # type: ignore[method-assign]
        return tokenizer

    runtime = make(load=load, max_answers=255)
    runtime.start()
    await until(lambda: runtime.status == "unavailable")
    assert "OPENJEV_MAX_ANSWERS is 255" in caplog.text


@pytest.mark.parametrize(
    ("error", "said"),
    [(OSError("The disk is gone."), "The disk is gone."), (KeyError(), "KeyError")],
)
async def test_unexpected_failure_of_the_start_is_logged_whole(
    make: Make, error: Exception, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    def load(config: Config) -> ChatTokenizer:
        raise error

    runtime = make(load=load)
    runtime.start()
    assert "the log says how" in await reason(runtime)
    assert said in caplog.text
    assert "Traceback" in caplog.text
    await refused(runtime)


async def test_readiness_is_told_when_it_is_reached(make: Make) -> None:
    told: list[str] = []
    runtime = make()
    runtime._when_ready = lambda: told.append(runtime.status)
    await ready(runtime)
    assert told == ["ok"]


async def test_engine_that_goes_away_and_comes_back_shows_in_health_and_once_in_the_log(
    make: Make,
    client: StandIn,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "HEALTH_MAX_AGE", -1.0)
    runtime = await ready(make())
    caplog.set_level(logging.INFO)
    for healthy, status in ((False, "unavailable"), (True, "ok")):
        client.healthy = healthy
        for _ in range(2):
            assert await runtime.health() == status
        assert runtime.status == status
    gone, back = [text for text in caplog.messages if text.startswith("The engine at")]
    assert gone.endswith("does not answer any more.")
    assert back.endswith("answers again.")


async def gone(call: Call) -> tuple[float, ...]:
    raise EngineUnavailable("The engine cannot be reached.")


async def test_engine_that_was_away_is_looked_at_before_it_is_used_again(
    make: Make, client: StandIn
) -> None:
    runtime = await ready(make())
    answer, client.answer = client.answer, gone
    with pytest.raises(EngineUnavailable):
        await runtime.evaluate(REQUEST)
    client.reachable = False
    with pytest.raises(EngineUnavailable):
        await runtime.evaluate(REQUEST)
    client.reachable, client.answer = True, answer
    await asyncio.gather(*(runtime.evaluate(REQUEST) for _ in range(2)))
    assert await runtime.health() == "ok"


async def test_engine_that_is_merely_full_is_not_looked_at_again(
    make: Make, client: StandIn
) -> None:
    runtime = await ready(make())
    answer = client.answer

    async def full(call: Call) -> tuple[float, ...]:
        raise EngineBusy("The engine's queue is full.")

    client.answer = full
    with pytest.raises(EngineBusy):
        await runtime.evaluate(REQUEST)
    client.answer, client.reachable = answer, False  # looking would fail
    await runtime.evaluate(REQUEST)


async def test_engine_whose_numbers_cannot_be_used_when_looked_at_is_looked_at_again(
    make: Make, client: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = await ready(make())
    answer, client.answer = client.answer, gone
    with pytest.raises(EngineUnavailable):
        await runtime.evaluate(REQUEST)
    client.answer = answer

    async def unsound(*, deadline: float) -> EngineDescription:
        raise UnusableLogprobs("The engine gave a log-probability that is not one.")

    with monkeypatch.context() as patched:
        patched.setattr(client, "describe", unsound)
        with pytest.raises(UnusableLogprobs):
            await runtime.evaluate(REQUEST)
    await runtime.evaluate(REQUEST)


async def test_engine_that_does_not_fit_any_more_is_refused_to_everybody_who_waits(
    make: Make,
    client: StandIn,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(start, "_RETRY_REFUSED_SECONDS", 0.01)
    runtime = await ready(make())
    answer, client.answer = client.answer, gone
    with pytest.raises(EngineUnavailable):
        await runtime.evaluate(REQUEST)
    client.answer, client.model, asked = answer, "other/model", len(client.calls)
    waiting = (runtime.evaluate(REQUEST) for _ in range(3))
    failures = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(failure) for failure in failures} == {NotReady}
    assert "serves 'other/model'" in caplog.text
    assert len(client.calls) == asked
    await refused(runtime)
    assert not runtime._start._refused.is_set()  # a server that has worked is not given up
    client.model = "tiny/random"
    await until(lambda: runtime.status == "ok")
    await runtime.evaluate(REQUEST)


async def test_look_at_an_engine_that_hangs_ends_at_the_deadline(
    make: Make, client: StandIn
) -> None:
    runtime = await ready(make(request_timeout=0.1))
    client.answer = gone
    with pytest.raises(EngineUnavailable):
        await runtime.evaluate(REQUEST)

    async def hangs(*, deadline: float) -> EngineDescription:
        await asyncio.Event().wait()
        raise AssertionError

    client.describe = hangs  # type: ignore[method-assign]
    async with asyncio.timeout(5):
        with pytest.raises(EngineTimeout):
            await runtime.evaluate(REQUEST)


async def test_health_is_asked_once_for_callers_within_a_second(
    make: Make, client: StandIn
) -> None:
    runtime = await ready(make())
    answers = await asyncio.gather(*(runtime.health() for _ in range(20)))
    answers.append(await runtime.health())
    assert set(answers) == {"ok"}
    assert client.health_checks == 1


async def test_caller_that_gives_up_does_not_take_the_answer_from_others(
    make: Make, client: StandIn
) -> None:
    runtime = await ready(make())
    gate = asyncio.Event()

    async def slow(*, deadline: float) -> bool:
        await gate.wait()
        return True

    client.is_healthy = slow  # type: ignore[method-assign]
    first, second = (asyncio.create_task(runtime.health()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    gate.set()
    assert await second == "ok"


async def test_health_never_hangs(
    make: Make, client: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEALTH_SECONDS", 0.05)
    runtime = await ready(make())

    async def hangs(*, deadline: float) -> bool:
        await asyncio.Event().wait()
        raise AssertionError

    client.is_healthy = hangs  # type: ignore[method-assign]
    async with asyncio.timeout(5):
        assert await runtime.health() == "unavailable"


@pytest.mark.parametrize("model", ["jev-latest", "jev-1", "tiny/random"])
async def test_served_names_are_accepted(make: Make, model: str) -> None:
    runtime = await ready(make())
    await runtime.evaluate(REQUEST._replace(model=model))


@pytest.mark.parametrize("model", ["gpt-4", "JEV-latest", "tiny", " jev-latest"])
async def test_other_names_are_refused_before_anything_else(make: Make, model: str) -> None:
    with pytest.raises(UnknownModel, match="tiny/random"):
        await make().evaluate(REQUEST._replace(model=model))


async def test_one_evaluation_too_many_is_refused_at_once(make: Make, client: StandIn) -> None:
    runtime = await ready(make(max_concurrent_requests=2))
    gate = asyncio.Event()
    answer = client.answer

    async def gated(call: Call) -> tuple[float, ...]:
        await gate.wait()
        return await answer(call)

    client.answer = gated
    running = [asyncio.create_task(runtime.evaluate(REQUEST)) for _ in range(2)]
    await until(lambda: client.under_way == 2)
    with pytest.raises(Overloaded):
        await runtime.evaluate(REQUEST)
    gate.set()
    await asyncio.gather(*running)
    await runtime.evaluate(REQUEST)


async def test_stop_ends_what_is_under_way_and_closes_the_client(
    make: Make, client: StandIn
) -> None:
    client.reachable = False
    runtime = make()
    runtime.start()
    await asyncio.sleep(0)
    await runtime.stop()
    assert client.closed
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("openjev")]


async def test_stop_without_start_is_harmless(make: Make, client: StandIn) -> None:
    await make().stop()
    assert client.closed


async def test_client_learns_the_size_of_the_vocabulary(
    make: Make, client: StandIn, tiny_tokenizer: ChatTokenizer
) -> None:
    """Before the first call: an id outside the vocabulary kills SGLang."""
    sizes: list[int | None] = []
    answer = client.answer

    async def noting(call: Call) -> tuple[float, ...]:
        sizes.append(client.vocabulary_size)
        return await answer(call)

    client.answer = noting
    await ready(make())
    assert set(sizes) == {tiny_tokenizer.vocabulary_size}


def test_process_has_one_runtime() -> None:
    get_runtime.cache_clear()
    try:
        assert get_runtime() is get_runtime()
    finally:
        get_runtime.cache_clear()


def test_the_collector_leaves_alone_what_the_start_has_made() -> None:
    get_runtime.cache_clear()
    thresholds = gc.get_threshold()
    gc.set_threshold(700)  # Python's own, whatever another runtime of this process has set
    gc.unfreeze()
    try:
        get_runtime()._when_ready()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] > 700
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        get_runtime.cache_clear()
