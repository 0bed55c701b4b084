"""What ends a run, with which code, and in what order things stop."""

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from backend import watchers
from backend.config import load_config
from backend.errors import EngineMismatch
from backend.lifespan import StartupRefused
from backend.runtime import run

CONFIG = replace(
    load_config({})[0],
    backend_url="http://engine",
    startup_timeout=9.0,
    drain_timeout=7.0,
    hang_timeout=3.0,
)


END_OF_A_FAILURE = [
    "api closes",
    "engine stops 0",
    "app drains 1",
    "api finishes",
    "engine stops 0",
]


class Log(list):
    def __call__(self, line):
        self.append(f"say {line}")


class StandInEngine:
    def __init__(self, log, *, start_error=None, ignores_sigterm=False):
        self.log = log
        self.hears = None
        self.code = asyncio.get_running_loop().create_future()
        self.start_error = start_error
        self.ignores_sigterm = ignores_sigterm

    def listen(self, listener):
        self.hears = listener

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

    async def start_accepting(self):
        self.log.append("api opens")

    async def stop_accepting(self):
        self.log.append("api closes")

    async def finish_answers(self, seconds):
        self.log.append("api finishes")


class StandInLifespan:
    def __init__(self, log, *, refuses=False, hangs=False, breaks=False):
        self.log, self.refuses, self.hangs, self.breaks = log, refuses, hangs, breaks
        self.reason = asyncio.get_running_loop().create_future()
        self.is_ready = asyncio.Event()
        self.is_ready.set()

    async def startup(self):
        self.log.append("app starts")
        if self.refuses:
            raise StartupRefused("no readout")

    async def ready(self):
        await self.is_ready.wait()

    async def refused(self):
        return await asyncio.shield(self.reason)

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


class Probes:
    """What asking engine and API comes to, as the test says; and what was asked."""

    def __init__(self):
        loop = asyncio.get_running_loop()
        self.asked = []
        self.healthy, self.serving, self.silent = (loop.create_future() for _ in range(3))

    async def wait_until_healthy(self, url, *, seconds):
        self.asked.append(("healthy", url, seconds))
        return await asyncio.shield(self.healthy)

    async def wait_until_serving(self, config, *, seconds):
        self.asked.append(("serving", config.backend_url, seconds))
        return await asyncio.shield(self.serving)

    async def wait_until_silent(self, config, *, seconds):
        self.asked.append(("silent", config.backend_url, seconds))
        await asyncio.shield(self.silent)

    async def why_not_serving(self, config):
        return f"At {config.backend_url} nothing answers."


@pytest.fixture
async def probes(monkeypatch):
    probes = Probes()
    for name in vars(Probes):
        if name in vars(watchers):
            monkeypatch.setattr(watchers, name, getattr(probes, name))
    return probes


def start(log, **parts):
    defaults = {
        "engine": StandInEngine(log),
        "api": StandInApi(log),
        "lifespan": StandInLifespan(log),
        "url": "http://here",
        "config": CONFIG,
        "say": log,
    }
    return asyncio.create_task(run(**(defaults | parts)))


async def until(log, entry):
    async with asyncio.timeout(5):
        while not any(line.startswith(entry) for line in log):  # noqa: ASYNC110 - a plain list
            await asyncio.sleep(0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_drains_then_stops_the_engine_with_code_0(log, probes, number):
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which `nohup` makes ignored
    try:
        probes.healthy.set_result(True)
        task = start(log)
        await until(log, "say Ready in ")
        assert any(" at http" in line for line in log)
        os.kill(os.getpid(), number)
        assert await task == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert [line for line in log if not line.startswith(("say Ready", "say Start"))] == [
        "app starts",
        "api opens",
        "engine starts",
        "say Stopping; a second signal stops at once.",
        "api closes",
        "app drains 12",
        "api finishes",
        "engine stops 15",
    ]


async def test_a_hang_up_that_nohup_ignores_stays_ignored(log, probes):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        probes.healthy.set_result(True)
        task = start(log)
        await until(log, "say Ready")
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await task == 0  # and not 130, as after two signals
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_ready_is_said_once_when_the_api_says_so_and_then_the_engine_is_watched(log, probes):
    probes.healthy.set_result(True)
    task = start(log, when_ready=lambda: log.append("start is over"))
    await until(log, "say Ready")
    assert log[-2] == "start is over"
    while len(probes.asked) < 2:  # noqa: ASYNC110 - a plain list
        await asyncio.sleep(0)
    assert probes.asked == [("healthy", "http://here", 9.0), ("silent", "http://engine", 3.0)]
    os.kill(os.getpid(), signal.SIGTERM)
    await task
    assert sum(line.startswith("say Ready") for line in log) == 1


async def test_the_phases_of_the_start_are_told_until_it_is_ready(log, probes):
    engine = StandInEngine(log)
    task = start(log, engine=engine)
    await until(log, "say Start   starting the engine (0 s)")
    engine.hears("Multi-thread loading shards:   0% Completed")
    await until(log, "say Start   loading the weights (0 s)")
    probes.healthy.set_result(True)
    await until(log, "say Ready")
    engine.hears("The server is fired up and ready to roll!")
    os.kill(os.getpid(), signal.SIGTERM)
    await task
    assert not any("checking" in line for line in log)


async def test_the_engines_death_is_code_1_with_its_last_words(log, probes, caplog):
    engine = StandInEngine(log)
    task = start(log, engine=engine)
    await until(log, "engine starts")
    engine.code.set_result(139)
    assert await task == 1
    assert "exit code 139" in caplog.text
    assert "out of memory" in caplog.text
    assert log[-5:] == END_OF_A_FAILURE


async def test_an_engine_that_lost_its_port_says_so(log, probes, caplog):
    engine = StandInEngine(log)
    task = start(log, engine=engine)
    await until(log, "engine starts")
    engine.hears("[Errno 98] error while attempting to bind on address: address already in use")
    engine.hears("The server is fired up and ready to roll!")  # SGLang says so even then
    engine.code.set_result(3)
    assert await task == 1
    assert "Choose another with --backend-port" in caplog.text


async def test_a_silent_engine_is_killed_before_the_requests_in_it_are_answered(
    log, probes, caplog
):
    probes.healthy.set_result(True)
    task = start(log)
    await until(log, "say Ready")
    probes.silent.set_result(None)
    assert await task == 1
    assert "has not answered for 3 seconds (OPENJEV_HANG_TIMEOUT)" in caplog.text
    assert "\n    out of memory" in caplog.text
    assert log[-5:] == END_OF_A_FAILURE


async def test_an_engine_elsewhere_is_not_watched(log, probes):
    probes.silent.set_result(None)
    task = start(log, engine=None)
    await until(log, "say Start   waiting for the engine (0 s)")
    probes.healthy.set_result(True)
    await until(log, "say Ready")
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task == 0


async def test_the_certainty_that_it_can_never_work_ends_it_with_code_1(log, probes, caplog):
    lifespan = StandInLifespan(log)
    task = start(log, lifespan=lifespan)
    await until(log, "engine starts")
    lifespan.reason.set_result("The tokenizer does not fit.")
    assert await task == 1
    assert "waiting cannot help: The tokenizer does not fit." in caplog.text
    assert log[-5:] == END_OF_A_FAILURE


async def test_never_ready_is_code_1(log, probes, caplog):
    probes.healthy.set_result(False)
    assert await start(log, when_ready=lambda: pytest.fail("it is not")) == 1
    assert (
        "Not ready within 9 seconds (OPENJEV_STARTUP_TIMEOUT): giving up while starting the "
        "engine. At http://engine nothing answers."
    ) in caplog.text
    assert log[-1] == "engine stops 0"


async def test_ready_is_not_said_before_every_process_is(log, probes, caplog):
    probes.healthy.set_result(True)
    lifespan = StandInLifespan(log)
    lifespan.is_ready.clear()
    task = start(log, lifespan=lifespan)
    await until(log, "engine starts")
    assert probes.asked == []
    lifespan.is_ready.set()
    await until(log, "say Ready")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task == 0
    lifespan.is_ready.clear()
    config = replace(CONFIG, startup_timeout=0.05)
    assert await start(log, lifespan=lifespan, config=config) == 1
    assert "Not ready within 0.05 seconds (OPENJEV_STARTUP_TIMEOUT)" in caplog.text


async def test_a_refused_start_up_starts_no_engine(log, probes, caplog):
    assert await start(log, lifespan=StandInLifespan(log, refuses=True)) == 1
    assert "no readout" in caplog.text
    assert "engine starts" not in log


async def test_an_engine_that_cannot_be_started_is_code_1(log, probes, caplog):
    engine = StandInEngine(log, start_error=OSError(12, "Cannot allocate memory"))
    assert await start(log, engine=engine) == 1
    assert "Cannot allocate memory" in caplog.text


async def test_a_second_signal_cuts_the_draining_short(log, probes):
    probes.healthy.set_result(True)
    task = start(log, lifespan=StandInLifespan(log, hangs=True))
    await until(log, "say Ready")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task == 130
    assert log[-1] == "engine stops 0"


async def test_a_second_signal_cuts_the_engines_grace_short(log, probes):
    probes.healthy.set_result(True)
    task = start(log, engine=StandInEngine(log, ignores_sigterm=True))
    await until(log, "say Ready")
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(5):
        assert await task == 130
    assert log[-2:] == ["engine stops 15", "engine stops 0"]


async def test_a_failure_while_draining_still_stops_the_engine(log, probes, caplog):
    probes.healthy.set_result(True)
    task = start(log, lifespan=StandInLifespan(log, breaks=True))
    await until(log, "say Ready")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task == 0
    assert "broken application" in caplog.text
    assert log[-1] == "engine stops 15"


@pytest.mark.parametrize(
    ("line", "reason", "hinted"),
    [
        (
            "Multi-thread loading shards:   0% Completed",
            "The engine at http://engine serves 'other'.",
            True,
        ),
        ("Multi-thread loading shards:   0% Completed", "The tokenizer does not fit.", False),
        ("Uvicorn running on http://engine", "The engine at http://engine serves 'other'.", False),
    ],
)
async def test_what_answers_before_the_engine_can_is_told(
    log, probes, caplog, line, reason, hinted
):
    engine, lifespan = StandInEngine(log), StandInLifespan(log)
    task = start(log, engine=engine, lifespan=lifespan)
    await until(log, "engine starts")
    engine.hears(line)
    lifespan.reason.set_result(reason)
    assert await task == 1
    assert ("If another server took its port" in caplog.text) is hinted


async def test_the_engine_alone_is_asked_for_a_real_answer(log, probes):
    probes.serving.set_result(True)
    task = start(log, api=None, lifespan=None)
    await until(log, "say Ready")
    assert probes.asked[0] == ("serving", "http://engine", 9.0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task == 0


async def test_the_engine_alone_is_not_waited_for_where_another_answers(log, probes, caplog):
    probes.serving.set_exception(EngineMismatch("What answers there serves 'other'."))
    assert await start(log, api=None, lifespan=None) == 1
    assert "serves 'other'" in caplog.text


async def test_cancelling_stops_the_engine_and_gives_signals_back(log, probes):
    task = start(log)
    await until(log, "engine starts")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log[-1] == "engine stops 0"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
