"""What ends a run, with which code, and in what order things stop."""

import asyncio
import os
import signal

import pytest

from backend import runtime
from backend.lifespan import StartupRefused
from backend.runtime import run


class Log(list):
    def __call__(self, line):
        self.append(f"say {line}")


class StandInEngine:
    def __init__(self, log, *, start_error=None, ignores_sigterm=False):
        self.log = log
        self.code = asyncio.get_running_loop().create_future()
        self.start_error = start_error
        self.ignores_sigterm = ignores_sigterm

    async def start(self):
        self.log.append("engine starts")
        if self.start_error:
            raise self.start_error

    async def wait(self):
        return await asyncio.shield(self.code)

    async def last_words(self):
        return ["out of memory"]

    async def stop(self, grace):
        self.log.append(f"engine stops {grace:g}")
        if self.ignores_sigterm and grace:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()


class StandInApi:
    def __init__(self, log):
        self.log = log

    async def stop_accepting(self):
        self.log.append("api closes")

    async def finish_answers(self, seconds):
        self.log.append("api finishes")


class StandInLifespan:
    def __init__(self, log, *, refuses=False, hangs=False, breaks=False):
        self.log, self.refuses, self.hangs, self.breaks = log, refuses, hangs, breaks

    async def startup(self):
        self.log.append("app starts")
        if self.refuses:
            raise StartupRefused("no readout")

    async def shutdown(self, seconds):
        self.log.append(f"app drains {seconds:g}")
        if self.breaks:
            raise ValueError("broken application")
        if self.hangs:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def healthy(monkeypatch):
    """Readiness as the test says: a future to be resolved."""
    answer = {}

    async def wait_until_healthy(url, *, seconds):
        answer["asked"] = (url, seconds)
        return await asyncio.shield(answer["future"])

    monkeypatch.setattr(runtime, "wait_until_healthy", wait_until_healthy)

    def set_up():
        answer["future"] = asyncio.get_running_loop().create_future()
        return answer

    return set_up


def start(log, **parts):
    defaults = {
        "engine": StandInEngine(log),
        "api": StandInApi(log),
        "lifespan": StandInLifespan(log),
        "probe_url": "http://here",
        "startup_timeout": 9.0,
        "say": log,
    }
    return asyncio.create_task(run(**(defaults | parts)))


async def until(log, entry):
    async with asyncio.timeout(5):
        while not any(line.startswith(entry) for line in log):  # noqa: ASYNC110 - a plain list
            await asyncio.sleep(0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_drains_then_stops_the_engine_with_code_0(log, healthy, number):
    healthy()["future"].set_result(True)
    task = start(log)
    await until(log, "say Ready in ")
    assert any(" at http" in line for line in log)
    os.kill(os.getpid(), number)
    assert await task == 0
    assert [line for line in log if not line.startswith("say Ready")] == [
        "app starts",
        "engine starts",
        "say Stopping; a second signal stops at once.",
        "api closes",
        "app drains 60",
        "api finishes",
        "engine stops 10",
    ]


async def test_a_hang_up_that_nohup_ignores_stays_ignored(log, healthy):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        healthy()["future"].set_result(True)
        task = start(log)
        await until(log, "say Ready")
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await task == 0  # and not 130, as after two signals
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_readiness_is_asked_where_it_was_said(log, healthy):
    answer = healthy()
    answer["future"].set_result(True)
    task = start(log)
    await until(log, "say Ready")
    assert answer["asked"] == ("http://here", 9.0)
    os.kill(os.getpid(), signal.SIGTERM)
    await task


async def test_the_engines_death_is_code_1_with_its_last_words(log, healthy, caplog):
    healthy()
    engine = StandInEngine(log)
    task = start(log, engine=engine)
    await until(log, "engine starts")
    engine.code.set_result(139)
    assert await task == 1
    assert "exit code 139" in caplog.text
    assert "out of memory" in caplog.text
    assert log[-4:] == ["api closes", "app drains 1", "api finishes", "engine stops 0"]


async def test_never_ready_is_code_1(log, healthy, caplog):
    healthy()["future"].set_result(False)
    assert await start(log) == 1
    assert "OPENJEV_STARTUP_TIMEOUT" in caplog.text
    assert log[-1] == "engine stops 0"


async def test_a_refused_start_up_starts_no_engine(log, healthy, caplog):
    healthy()
    assert await start(log, lifespan=StandInLifespan(log, refuses=True)) == 1
    assert "no readout" in caplog.text
    assert "engine starts" not in log


async def test_an_engine_that_cannot_be_started_is_code_1(log, healthy, caplog):
    healthy()
    engine = StandInEngine(log, start_error=OSError(12, "Cannot allocate memory"))
    assert await start(log, engine=engine) == 1
    assert "Cannot allocate memory" in caplog.text


async def test_a_second_signal_cuts_the_draining_short(log, healthy):
    healthy()["future"].set_result(True)
    task = start(log, lifespan=StandInLifespan(log, hangs=True))
    await until(log, "say Ready")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task == 130
    assert log[-1] == "engine stops 0"


async def test_a_second_signal_cuts_the_engines_grace_short(log, healthy):
    healthy()["future"].set_result(True)
    task = start(log, engine=StandInEngine(log, ignores_sigterm=True))
    await until(log, "say Ready")
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(5):
        assert await task == 130
    assert log[-2:] == ["engine stops 10", "engine stops 0"]


async def test_a_failure_while_draining_still_stops_the_engine(log, healthy, caplog):
    healthy()["future"].set_result(True)
    task = start(log, lifespan=StandInLifespan(log, breaks=True))
    await until(log, "say Ready")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task == 0
    assert "broken application" in caplog.text
    assert log[-1] == "engine stops 10"


async def test_engine_alone_and_api_alone(log, healthy):
    for parts in ({"api": None, "lifespan": None}, {"engine": None}):
        log.clear()
        healthy()["future"].set_result(True)
        task = start(log, **parts)
        await until(log, "say Ready")
        os.kill(os.getpid(), signal.SIGTERM)
        assert await task == 0


async def test_cancelling_stops_the_engine_and_gives_signals_back(log, healthy):
    healthy()
    task = start(log)
    await until(log, "engine starts")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log[-1] == "engine stops 0"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
