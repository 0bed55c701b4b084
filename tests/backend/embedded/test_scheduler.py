"""Order, packing, dropping and failing, seen from the outside of the queue."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest

from backend.embedded.model import Cancelled, KeyValues, Model
from backend.embedded.requests import Aborted, EngineFailed, QueueFull, Request, Result
from backend.embedded.scheduler import Scheduler

WAIT = 20.0
PREFIX = tuple(range(100, 160))


class WatchedModel:
    """The tiny model, with a gate before every pass and a list of what was read in each."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.architecture = model.architecture
        self.allocate = model.allocate
        self.log_probabilities = model.log_probabilities
        self.passes: list[list[int]] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.fail_with: BaseException | None = None

    def open(self) -> None:
        """Let all passes through from now on."""
        for _ in range(1000):
            self.gate.release()

    def forward(self, branches: Sequence[Sequence[int]], past: KeyValues, **options: Any) -> Any:
        self.passes.append([len(branch) for branch in branches])
        self.entered.release()
        assert self.gate.acquire(timeout=WAIT)
        if self.fail_with is not None:
            raise self.fail_with
        return self._model.forward(branches, past, **options)


@pytest.fixture
def model(tiny_model: Model) -> WatchedModel:
    return WatchedModel(tiny_model)


@pytest.fixture
def start(model: WatchedModel) -> Iterator[Callable[..., Scheduler]]:
    started: list[Scheduler] = []

    def begin(*, cache_bytes: int = 2**24, queue_limit: int = 64) -> Scheduler:
        scheduler = Scheduler(
            lambda stop: model,  # type: ignore[arg-type,return-value]
            cache_bytes=cache_bytes,
            queue_limit=queue_limit,
        )
        started.append(scheduler)
        scheduler.start()
        scheduler.ready.result(WAIT)
        return scheduler

    yield begin
    model.open()
    for scheduler in started:
        scheduler.close(WAIT)


def ask(scheduler: Scheduler, ids: Sequence[int], rid: str = "r") -> Request:
    request = Request(rid, tuple(ids), (1, 2, 3))
    scheduler.submit([request])
    return request


def answer(scheduler: Scheduler, ids: Sequence[int]) -> Result:
    return ask(scheduler, ids).future.result(WAIT)


def branch(number: int, length: int = 5) -> tuple[int, ...]:
    return PREFIX + tuple(range(200 + number, 200 + number + length))


def test_branches_that_wait_together_are_one_pass(
    model: WatchedModel, start: Callable[..., Scheduler]
) -> None:
    model.open()
    scheduler = start()
    assert answer(scheduler, PREFIX).cached_tokens == 0
    requests = [Request(f"b{n}", branch(n, 5 + n), (1, 2)) for n in range(4)]
    scheduler.submit(requests)
    results = [request.future.result(WAIT) for request in requests]
    assert model.passes == [[60], [5, 6, 7, 8]]
    assert [result.cached_tokens for result in results] == [60] * 4


def test_packed_equals_alone(model: WatchedModel, start: Callable[..., Scheduler]) -> None:
    model.open()
    scheduler = start()
    answer(scheduler, PREFIX)
    requests = [Request(f"b{n}", branch(n), (1, 2, 3)) for n in range(4)]
    scheduler.submit(requests)
    packed = [request.future.result(WAIT).logprobs for request in requests]
    uncached = start(cache_bytes=0)
    for number, logprobs in enumerate(packed):
        alone = answer(uncached, branch(number))
        assert alone.cached_tokens == 0
        np.testing.assert_allclose(np.exp(logprobs), np.exp(alone.logprobs), atol=1e-5)


def test_second_identical_request_reuses_exactly_the_prefix(
    model: WatchedModel, start: Callable[..., Scheduler]
) -> None:
    model.open()
    scheduler = start()
    for warm in (0, 59):
        assert answer(scheduler, PREFIX).cached_tokens == warm
        assert [answer(scheduler, branch(n)).cached_tokens for n in range(3)] == [60] * 3
        assert len(scheduler._cache) == 1


def test_repeated_prompt_is_answered_without_a_pass(
    model: WatchedModel, start: Callable[..., Scheduler]
) -> None:
    model.open()
    scheduler = start()
    first, again = answer(scheduler, PREFIX), answer(scheduler, PREFIX)
    assert model.passes == [[60]]
    assert again.logprobs == first.logprobs
    assert again.cached_tokens == 59


def test_large_sets_are_split(model: WatchedModel, start: Callable[..., Scheduler]) -> None:
    model.open()
    scheduler = start()
    answer(scheduler, PREFIX)
    requests = [Request(f"b{n}", branch(n, 200), ()) for n in range(4)]
    scheduler.submit(requests)
    for request in requests:
        request.future.result(WAIT)
    assert model.passes[1:] == [[200, 200], [200, 200]]


def test_branch_longer_than_a_pass_is_read_alone_and_whole(
    model: WatchedModel, start: Callable[..., Scheduler]
) -> None:
    model.open()
    scheduler = start()
    answer(scheduler, PREFIX)
    long = PREFIX + tuple(n % 800 for n in range(600))
    requests = [Request(f"b{n}", ids, (1, 2, 3)) for n, ids in enumerate([long, branch(1)])]
    scheduler.submit(requests)
    results = [request.future.result(WAIT) for request in requests]
    assert model.passes == [[60], [600], [5]]
    assert [result.cached_tokens for result in results] == [60, 60]
    alone = answer(start(cache_bytes=0), long)
    assert model.passes[-2:] == [[512], [148]]
    np.testing.assert_allclose(np.exp(results[0].logprobs), np.exp(alone.logprobs), atol=1e-5)


def test_long_prompt_is_read_in_chunks_and_its_beginning_reused(
    model: WatchedModel, start: Callable[..., Scheduler]
) -> None:
    model.open()
    scheduler = start()
    ids = [n % 800 for n in range(1100)]
    whole = answer(scheduler, ids)
    assert model.passes == [[512], [512], [76]]
    other = answer(scheduler, [*ids[:700], 5, 6])
    assert other.cached_tokens == 700
    fresh = answer(start(cache_bytes=0), [*ids[:700], 5, 6])
    np.testing.assert_allclose(np.exp(other.logprobs), np.exp(fresh.logprobs), atol=1e-5)
    assert whole.token_logprob <= 0


def test_oldest_is_served_first(model: WatchedModel, start: Callable[..., Scheduler]) -> None:
    scheduler = start()
    first = ask(scheduler, PREFIX)
    assert model.entered.acquire(timeout=WAIT)
    ask(scheduler, range(10))
    ask(scheduler, range(300, 320))
    last = ask(scheduler, branch(1))
    model.open()
    assert last.future.result(WAIT).cached_tokens == 60
    assert first.future.done()
    assert model.passes == [[60], [10], [20], [5]]


def test_cancelled_request_never_costs(
    model: WatchedModel, start: Callable[..., Scheduler]
) -> None:
    scheduler = start()
    running = ask(scheduler, PREFIX)
    assert model.entered.acquire(timeout=WAIT)
    dropped, kept = ask(scheduler, range(10)), ask(scheduler, range(300, 320))
    assert dropped.future.cancel()
    model.open()
    kept.future.result(WAIT)
    assert running.future.done()
    assert model.passes == [[60], [20]]


def test_cancelled_branch_does_not_disturb_its_companions(
    model: WatchedModel, start: Callable[..., Scheduler]
) -> None:
    scheduler = start()
    state = ask(scheduler, PREFIX)
    assert model.entered.acquire(timeout=WAIT)
    requests = [Request(f"b{n}", branch(n), (1, 2, 3)) for n in range(3)]
    scheduler.submit(requests)
    model.gate.release()
    assert model.entered.acquire(timeout=WAIT)
    requests[1].future.cancel()
    model.open()
    for request in (state, requests[0], requests[2]):
        request.future.result(WAIT)
    assert model.passes == [[60], [5, 5, 5]]


def test_cancelled_pass_stops_and_is_not_cached(
    model: WatchedModel, start: Callable[..., Scheduler]
) -> None:
    scheduler = start()
    running = ask(scheduler, [n % 800 for n in range(2000)])
    assert model.entered.acquire(timeout=WAIT)
    running.future.cancel()
    model.open()
    assert answer(scheduler, PREFIX).cached_tokens == 0
    assert model.passes == [[512], [60]]
    assert len(scheduler._cache) == 1


def test_abort_is_by_prefix_of_the_name(
    model: WatchedModel, start: Callable[..., Scheduler]
) -> None:
    scheduler = start()
    running = ask(scheduler, PREFIX, "x")
    assert model.entered.acquire(timeout=WAIT)
    waiting = {rid: ask(scheduler, range(10), rid) for rid in ("q", "q.1", "p")}
    scheduler.abort("unknown")
    scheduler.abort("")
    scheduler.abort("q")
    for rid in ("q", "q.1"):
        with pytest.raises(Aborted):
            waiting[rid].future.result(WAIT)
    model.open()
    assert waiting["p"].future.result(WAIT)
    assert running.future.result(WAIT)


def test_abort_all(model: WatchedModel, start: Callable[..., Scheduler]) -> None:
    scheduler = start()
    requests = [ask(scheduler, PREFIX, "a")]
    assert model.entered.acquire(timeout=WAIT)
    requests.append(ask(scheduler, PREFIX, "b"))
    assert scheduler.pending == (1, 1)
    scheduler.abort("", everything=True)
    for request in requests:
        with pytest.raises(Aborted):
            request.future.result(WAIT)


def test_full_queue_refuses_all_or_nothing(
    model: WatchedModel, start: Callable[..., Scheduler]
) -> None:
    scheduler = start(queue_limit=3)
    ask(scheduler, PREFIX)
    assert model.entered.acquire(timeout=WAIT)
    waiting = ask(scheduler, range(10))
    with pytest.raises(QueueFull):
        scheduler.submit([Request("c", (1,), ()), Request("d", (1,), ())])
    waiting.future.cancel()  # makes room
    scheduler.submit([Request("c", (1,), ()), Request("d", (1,), ())])


def test_flush_forgets_prefixes(model: WatchedModel, start: Callable[..., Scheduler]) -> None:
    model.open()
    scheduler = start()
    answer(scheduler, PREFIX)
    scheduler.flush()
    assert answer(scheduler, PREFIX).cached_tokens == 0


def test_result_that_is_no_number_fails_its_requests_only(
    model: WatchedModel, start: Callable[..., Scheduler]
) -> None:
    model.open()
    scheduler = start()
    model.fail_with = ArithmeticError("not finite")
    with pytest.raises(ArithmeticError):
        answer(scheduler, PREFIX)
    model.fail_with = None
    assert answer(scheduler, PREFIX)


def test_crash_fails_everything_and_is_reported(
    model: WatchedModel, start: Callable[..., Scheduler]
) -> None:
    scheduler = start()
    running = ask(scheduler, PREFIX)
    assert model.entered.acquire(timeout=WAIT)
    waiting = ask(scheduler, range(10))
    model.fail_with = MemoryError()
    model.open()
    assert isinstance(scheduler.failure.result(WAIT), MemoryError)
    for request in (running, waiting):
        with pytest.raises(EngineFailed):
            request.future.result(WAIT)
    with pytest.raises(QueueFull):
        ask(scheduler, PREFIX)


def test_load_error_is_reported() -> None:
    def load(stop: Callable[[], bool]) -> Model:
        raise OSError("no such file")

    scheduler = Scheduler(load, cache_bytes=0, queue_limit=1)
    scheduler.start()
    assert str(scheduler.failure.result(WAIT)) == "no such file"
    assert not scheduler.ready.done()


def test_closing_stops_a_load() -> None:
    loading = threading.Event()

    def load(stop: Callable[[], bool]) -> Model:
        loading.set()
        while not stop():
            pass
        raise Cancelled

    scheduler = Scheduler(load, cache_bytes=0, queue_limit=1)
    scheduler.start()
    assert loading.wait(WAIT)
    scheduler.close(WAIT)
    assert not scheduler._thread.is_alive()
    assert not scheduler.failure.done()


def test_closing_drops_what_waits(model: WatchedModel, start: Callable[..., Scheduler]) -> None:
    scheduler = start()
    running = ask(scheduler, PREFIX)
    assert model.entered.acquire(timeout=WAIT)
    waiting = ask(scheduler, PREFIX)
    model.open()
    scheduler.close(WAIT)
    for request in (running, waiting):
        with pytest.raises(CancelledError):
            request.future.result(0)
    assert not scheduler._thread.is_alive()
