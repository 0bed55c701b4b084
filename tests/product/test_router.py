"""Two engines behind the real sglang-router: who gets which call, and what if one of them dies."""

import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from tests.support.loopback import free_port, running_engine, wait_until_healthy
from tests.support.router import Router, running_router
from tests.support.served import Served, serve

pytestmark = pytest.mark.process

QUESTIONS = {
    name: {"type": "noul", "instructions": f"Is it {name}?"}
    for name in ("late", "broken", "lost", "paid", "wanted")
}
CALLS = len(QUESTIONS) + 1
WAIT_SECONDS = 20.0


@dataclass(frozen=True)
class Cluster:
    """An API in front of a router in front of two engines.

    Attributes:
        api: what users meet.
        router: between it and the engines.
        engines: the processes, by their addresses.
        start: starts an engine at an address.
    """

    api: Served
    router: Router
    engines: dict[str, subprocess.Popen[bytes]]
    start: Callable[[str], subprocess.Popen[bytes]]

    def evaluate(self) -> httpx.Response:
        """Ask five questions about a text nobody has asked about before."""
        state = f"Parcel {uuid.uuid4()} arrived. " * 10
        return self.api.evaluate({"model": "jev-latest", "state": state, "questions": QUESTIONS})

    def health(self) -> int:
        """The status of the API's own health."""
        return httpx.get(f"{self.api.url}/health", timeout=10).status_code

    def pause(self) -> None:
        """Let both engines take calls and answer none."""
        for engine in self.engines.values():
            engine.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End the pause for those that live."""
        for engine in self.engines.values():
            engine.send_signal(signal.SIGCONT)

    def kill(self, count: int = 1) -> None:
        """End the first engines without warning."""
        for engine in [*self.engines.values()][:count]:
            engine.kill()
            engine.wait(5)

    def revive(self) -> None:
        """Start killed engines at their old addresses."""
        dead = [url for url, engine in self.engines.items() if engine.poll() is not None]
        self.engines.update({url: self.start(url) for url in dead})

    def is_whole(self) -> bool:
        """Whether both engines get work."""
        before = self.router.answered()
        for _ in range(4):
            self.evaluate()
        return len(difference(before, self.router.answered())) == 2


@contextmanager
def running_front(
    where: Path, engines: Iterable[str], environ: Mapping[str, str], *options: str
) -> Iterator[tuple[Served, Router]]:
    """Start a router, with further options, and an API in front of it."""
    # the context of the engines is not visible through the router
    environ = {**environ, "OPENJEV_MAX_INPUT_TOKENS": "4096"}
    ports = {"port": free_port(), "backend_port": free_port()}
    with running_router([*engines], where / "router.log", *options) as router:
        with serve(where, **ports, seconds=60, environ=environ, connect=router.url) as api:
            yield api, router


@pytest.fixture(scope="module")
def documented(
    tmp_path_factory: pytest.TempPathFactory, tiny_gguf: Path, tiny_environ: dict[str, str]
) -> Iterator[Cluster]:
    """The router as the document says to start it."""
    with ExitStack() as running:

        def start(url: str) -> subprocess.Popen[bytes]:
            port = int(url.rpartition(":")[2])
            return running.enter_context(running_engine(tiny_gguf, port))[1]

        engines = {url: start(url) for url in (f"http://127.0.0.1:{free_port()}" for _ in "ab")}
        for url, process in engines.items():
            wait_until_healthy(url, process)
        where = tmp_path_factory.mktemp("cluster")
        front = running.enter_context(running_front(where, engines, tiny_environ))
        yield Cluster(*front, engines, start)


@pytest.fixture
def cluster(documented: Cluster) -> Cluster:
    """The same, with both engines at work, whatever an earlier test has done to them."""
    documented.resume()
    documented.revive()
    wait_for(documented.is_whole)
    return documented


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Callers at the same time."""
    with ThreadPoolExecutor(16) as threads:
        yield threads


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def assert_found_its_prefix(response: httpx.Response) -> None:
    assert response.status_code == 200, response.text
    prefix = int(response.headers["x-openjev-prefix-tokens"])
    assert prefix > 100
    assert int(response.headers["x-openjev-cached-tokens"]) >= len(QUESTIONS) * prefix


def assert_asks_to_come_back(response: httpx.Response) -> None:
    assert response.status_code == 503, response.text
    assert int(response.headers["Retry-After"]) >= 1
    error = response.json()["error"]
    assert error["type"] == "backend_unavailable"
    assert "127.0.0.1" not in error["message"], "an address of the private network"


def difference(before: Mapping[str, int], after: Mapping[str, int]) -> list[int]:
    counts = (after[url] - before.get(url, 0) for url in after)
    return [count for count in counts if count]


def hold(cluster: Cluster, threads: ThreadPoolExecutor) -> list[Future[httpx.Response]]:
    """Begin four evaluations that wait for their engines, two on each."""
    cluster.pause()
    asked = []
    for load in ([0, 1], [1, 1], [1, 2], [2, 2]):
        asked.append(threads.submit(cluster.evaluate))
        wait_for(lambda load=load: sorted(cluster.router.load().values()) == load)
    return asked


def test_all_calls_of_an_evaluation_go_to_one_engine_and_evaluations_to_both(
    cluster: Cluster, threads: ThreadPoolExecutor
) -> None:
    for _ in range(4):
        before = cluster.router.answered()
        assert_found_its_prefix(cluster.evaluate())
        assert difference(before, cluster.router.answered()) == [CALLS]
    before = cluster.router.answered()
    for answer in [threads.submit(cluster.evaluate) for _ in range(12)]:
        assert_found_its_prefix(answer.result())
    shares = difference(before, cluster.router.answered())
    assert len(shares) == 2
    assert sum(shares) == 12 * CALLS
    assert all(share % CALLS == 0 for share in shares)


def test_another_policy_scatters_calls_although_they_have_the_same_key(
    cluster: Cluster, tmp_path: Path
) -> None:
    body = {"input_ids": [1, 2, 3], "sampling_params": {"temperature": 0, "max_new_tokens": 1}}
    key = {"x-smg-routing-key": "one"}
    with running_router([*cluster.engines], tmp_path / "log", "--policy", "round_robin") as router:
        for _ in range(CALLS):
            httpx.post(f"{router.url}/generate", json=body, headers=key).raise_for_status()
        assert [*router.answered().values()] == [CALLS // 2, CALLS // 2]


def test_a_killed_engine_s_evaluations_are_answered_by_the_other(
    cluster: Cluster, threads: ThreadPoolExecutor
) -> None:
    asked = hold(cluster, threads)
    cluster.kill()
    cluster.resume()
    assert [answer.result().status_code for answer in asked] == [200] * 4
    for _ in range(4):
        assert_found_its_prefix(cluster.evaluate())
    assert cluster.health() == 200


def test_an_engine_killed_under_load_costs_nobody_an_answer(
    cluster: Cluster, threads: ThreadPoolExecutor
) -> None:
    before = [threads.submit(cluster.evaluate) for _ in range(12)]
    before[0].result()
    cluster.kill()
    after = [threads.submit(cluster.evaluate) for _ in range(20)]
    assert {answer.result().status_code for answer in before + after} == {200}


def test_without_engines_callers_are_asked_to_come_back_and_can_when_one_has_returned(
    cluster: Cluster,
) -> None:
    cluster.kill(2)
    assert_asks_to_come_back(cluster.evaluate())
    wait_for(lambda: cluster.health() == 503)
    assert_asks_to_come_back(cluster.evaluate())
    cluster.revive()
    wait_for(lambda: cluster.health() == 200)
    wait_for(lambda: cluster.evaluate().status_code == 200)
    assert_found_its_prefix(cluster.evaluate())


def test_without_retries_only_what_was_on_the_killed_engine_fails_and_says_so(
    cluster: Cluster, tmp_path: Path, tiny_environ: dict[str, str], threads: ThreadPoolExecutor
) -> None:
    options = ("--disable-retries", "--cb-failure-threshold", "1")
    with running_front(tmp_path, cluster.engines, tiny_environ, *options) as (api, router):
        cluster = replace(cluster, api=api, router=router)
        asked = hold(cluster, threads)
        cluster.kill()
        cluster.resume()
        failed = [answer.result() for answer in asked if answer.result().status_code != 200]
        assert len(failed) == 2
        for answer in failed:
            assert_asks_to_come_back(answer)
        for _ in range(6):
            assert_found_its_prefix(cluster.evaluate())
