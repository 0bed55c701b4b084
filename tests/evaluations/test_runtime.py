import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from backend.client import EngineClient
from backend.config import Config
from backend.errors import EngineUnavailable, TokenizerError
from backend.tokenizer import ChatTokenizer
from backend.vocabulary import vocabulary_from_gguf
from evaluations import runtime as module
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
    assert (await runtime.health()).status == "ok"


async def test_second_start_changes_nothing(make: Make) -> None:
    loads: list[str] = []
    runtime = make()
    load = runtime._load

    def counted(config: Config) -> ChatTokenizer:
        loads.append("load")
        return load(config)

    runtime._load = counted
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
    health = await runtime.health()
    assert (health.status, health.startup_seconds) == ("starting", None)
    assert health.reason
    assert client.calls == []


async def test_engine_that_comes_late_is_waited_for(
    make: Make, client: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.01)
    client.reachable = False
    runtime = make(startup_timeout=0.05)
    runtime.start()
    await until(lambda: runtime.status == "unavailable")
    reason = (await runtime.health()).reason or ""
    assert "OPENJEV_STARTUP_TIMEOUT" in reason
    assert "still being waited for" in reason
    with pytest.raises(NotReady, match="OPENJEV_STARTUP_TIMEOUT"):
        await runtime.evaluate(REQUEST)
    client.reachable = True
    await until(lambda: runtime.status == "ok")
    await runtime.evaluate(REQUEST)


async def test_probe_that_fails_is_asked_again(
    make: Make, client: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.01)
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


@pytest.mark.parametrize(
    ("described", "said"),
    [
        ({"model": "other/model"}, "serves 'other/model'"),
        ({"max_input_tokens": 4_096}, "fewer than 4096 tokens"),
    ],
)
async def test_engine_that_does_not_fit_is_refused_in_a_sentence(
    make: Make, client: StandIn, described: dict[str, object], said: str
) -> None:
    for name, value in described.items():
        setattr(client, name, value)
    runtime = make()
    runtime.start()
    await until(lambda: runtime.status == "unavailable")
    assert said in ((await runtime.health()).reason or "")
    with pytest.raises(NotReady, match=said):
        await runtime.evaluate(REQUEST)


async def test_tokenizer_that_does_not_fit_is_refused_in_its_own_sentence(make: Make) -> None:
    def load(config: Config) -> ChatTokenizer:
        raise TokenizerError("The tokenizer is of kind 'martian'.")

    runtime = make(load=load)
    runtime.start()
    await until(lambda: runtime.status == "unavailable")
    with pytest.raises(NotReady, match=r"No model is ready to answer\. The tokenizer is of kind"):
        await runtime.evaluate(REQUEST)


async def test_too_few_labels_are_a_reason(make: Make, tiny_gguf: Path) -> None:
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
    assert "OPENJEV_MAX_ANSWERS is 255" in ((await runtime.health()).reason or "")


@pytest.mark.parametrize(
    ("error", "said"),
    [(OSError("The disk is gone."), "The disk is gone."), (KeyError(), "KeyError")],
)
async def test_unexpected_failure_of_the_start_is_kept(
    make: Make, error: Exception, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    def load(config: Config) -> ChatTokenizer:
        raise error

    runtime = make(load=load)
    runtime.start()
    await until(lambda: runtime.status == "unavailable")
    assert said in ((await runtime.health()).reason or "")
    assert "Traceback" in caplog.text


async def test_engine_that_goes_away_and_comes_back_shows_in_health(
    make: Make, client: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEALTH_MAX_AGE", 0.0)
    runtime = await ready(make())
    client.healthy = False
    health = await runtime.health()
    assert health.status == runtime.status == "unavailable"
    assert "does not answer" in (health.reason or "")
    client.healthy = True
    assert (await runtime.health()).status == runtime.status == "ok"


async def test_health_is_asked_once_for_callers_within_a_second(
    make: Make, client: StandIn
) -> None:
    runtime = await ready(make())
    answers = await asyncio.gather(*(runtime.health() for _ in range(20)))
    answers.append(await runtime.health())
    assert {health.status for health in answers} == {"ok"}
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
    assert (await second).status == "ok"


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
        assert (await runtime.health()).status == "unavailable"


@pytest.mark.parametrize("model", ["jev-latest", "jev-1", "tiny/random"])
async def test_served_names_are_accepted(make: Make, model: str) -> None:
    runtime = await ready(make())
    await runtime.evaluate(replace(REQUEST, model=model))


@pytest.mark.parametrize("model", ["gpt-4", "JEV-latest", "tiny", " jev-latest"])
async def test_other_names_are_refused_before_anything_else(make: Make, model: str) -> None:
    with pytest.raises(UnknownModel, match="tiny/random"):
        await make().evaluate(replace(REQUEST, model=model))


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
    config: Config, tiny_tokenizer: ChatTokenizer
) -> None:
    client = EngineClient("http://127.0.0.1:9")
    runtime = Runtime(config, client, lambda config: tiny_tokenizer)
    runtime.start()
    await until(lambda: client.vocabulary_size is not None)
    assert client.vocabulary_size == tiny_tokenizer.vocabulary_size
    await runtime.stop()


def test_process_has_one_runtime() -> None:
    get_runtime.cache_clear()
    try:
        assert get_runtime() is get_runtime()
    finally:
        get_runtime.cache_clear()
