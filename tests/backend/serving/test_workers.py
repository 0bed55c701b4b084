"""Several processes on one port, with real signals, on a fake engine and a tiny application."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise

import httpx
import psutil
import pytest

from backend.config import load_config
from backend.launch import LaunchError, open_listener
from backend.lifespan import StartupRefused
from backend.serving.workers import MOST_DEATHS, REPLACEMENT_SECONDS, Workers
from tests.support.loopback import ROOT, free_port
from tests.support.running import TINY, Asking, assert_gone

pytestmark = pytest.mark.process


@pytest.fixture(params=["daphne", "uvicorn"])
def server(request):
    """The options that choose each server in turn, in two processes."""
    return ["--server", request.param, "--workers", 2]


TWO = ("--server", "uvicorn", "--workers", 2)


def at(ports, path):
    return f"http://127.0.0.1:{ports.api}{path}"


def pids(ports):
    """Who answers, of 16 clients at the same time."""
    asked = [Asking("GET", at(ports, "/pid")) for _ in range(16)]
    assert {one.status() for one in asked} == {200}
    return {int(one.answer.text) for one in asked}


def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_all_of_them_serve_and_a_signal_answers_what_is_in_flight(start, ports, server):
    command = start(TINY, *ports, *server, "--grandchild")
    command.wait_for("Ready in ")
    processes = command.descendants()
    assert len(processes) == 5  # two of the API, and the keeper, the engine, its worker
    serving = {worker.pid for worker in command.workers()}
    until(lambda: pids(ports) == serving)
    asked = [Asking("GET", at(ports, "/slow")) for _ in range(8)]
    command.wait_for("slow request\n" * 8)
    command.process.send_signal(signal.SIGTERM)
    assert command.ends() == 0
    assert [one.status() for one in asked] == [200] * 8
    assert command.output.count("drained") == 2
    assert_gone(processes)


def test_the_engines_death_ends_everything_soon(start, ports, server):
    command = start(TINY, *ports, *server, "--grandchild")
    command.wait_for("Ready in ")
    processes = command.descendants()
    asked = Asking("GET", at(ports, "/stuck"))
    command.wait_for("stuck request")
    command.engine().send_signal(signal.SIGKILL)
    killed = time.monotonic()
    assert command.ends() == 1
    assert time.monotonic() - killed < 3.0
    assert "The engine ended by itself" in command.output
    assert_gone(processes)
    asked.join(5)
    assert asked.answer is not None


def test_killing_the_command_leaves_nothing(start, ports, server):
    command = start(TINY, *ports, *server, "--grandchild")
    command.wait_for("Ready in ")
    processes = command.descendants()
    Asking("GET", at(ports, "/stuck"))
    command.wait_for("stuck request")
    command.process.kill()
    assert_gone(processes)


def test_a_worker_that_dies_is_replaced_while_the_others_serve(start, ports, server):
    command = start(TINY, *ports, *server)
    command.wait_for("Ready in ")
    dies, stays = command.workers()
    dies.kill()
    command.wait_for(f"A worker of the API (process {dies.pid}) ended by itself (exit code -9).")
    until(lambda: len(pids(ports) - {dies.pid}) == 2)
    assert stays.is_running()
    assert len(command.workers()) == 2
    command.process.send_signal(signal.SIGTERM)
    assert command.ends() == 0


def test_a_worker_that_is_asked_to_end_answers_first_and_is_replaced(start, ports):
    command = start(TINY, *ports, *TWO)
    command.wait_for("Ready in ")
    before = {worker.pid for worker in command.workers()}
    asked = [Asking("GET", at(ports, "/slow")) for _ in range(8)]
    command.wait_for("slow request\n" * 8)
    for worker in command.workers():
        worker.terminate()
    assert [one.status() for one in asked] == [200] * 8
    until(lambda: len([w for w in command.workers() if w.pid not in before]) == 2)
    until(lambda: not pids(ports) & before)
    assert command.process.poll() is None
    for pid in before:
        said = f"A worker of the API (process {pid}) was asked to end, and is replaced."
        assert said in command.output
    assert "ended by itself" not in command.output


def assert_replaced(command, ports, gone, stays):
    """One is no more, the other is left alone, and there are two again, who serve."""
    said = f"A worker of the API (process {gone.pid}) has not moved for 3 seconds"
    command.wait_for(f"{said} (OPENJEV_HANG_TIMEOUT) and is killed.")
    until(lambda: len(pids(ports)) == 2)
    assert gone.pid not in pids(ports)
    assert not gone.is_running()
    assert stays in command.workers()
    assert "ended by itself" not in command.output
    command.process.send_signal(signal.SIGTERM)
    assert command.ends() == 0


def test_a_worker_whose_loop_hangs_is_killed_and_replaced(start, ports, server):
    command = start(TINY, *ports, *server, OPENJEV_HANG_TIMEOUT="3")
    command.wait_for("Ready in ")
    before = command.workers()
    asked = Asking("GET", at(ports, "/hang"))
    command.wait_for("has not moved")
    said = re.search(r"\(process (\d+)\) has not moved", command.output)
    (gone,) = [worker for worker in before if worker.pid == int(said[1])]
    (stays,) = [worker for worker in before if worker != gone]
    assert_replaced(command, ports, gone, stays)
    assert re.search(r'tiny_asgi.py", line \d+ in application', command.output)  # where it hung
    asked.join(5)
    assert isinstance(asked.answer, httpx.TransportError)


def test_a_worker_that_is_stopped_is_killed_and_replaced(start, ports):
    command = start(TINY, *ports, *TWO, OPENJEV_HANG_TIMEOUT="3")
    command.wait_for("Ready in ")
    gone, stays = command.workers()
    gone.suspend()
    assert_replaced(command, ports, gone, stays)


def test_the_end_does_not_wait_for_one_that_hangs(start, ports):
    command = start(TINY, *ports, *TWO, OPENJEV_HANG_TIMEOUT="3")
    command.wait_for("Ready in ")
    processes = command.descendants()
    command.workers()[0].suspend()
    command.process.send_signal(signal.SIGTERM)
    assert command.ends() == 0  # within less than OPENJEV_DRAIN_TIMEOUT
    assert_gone(processes)


def test_workers_that_die_again_and_again_are_given_up(start, ports):
    command = start(TINY, *ports, *TWO)
    command.wait_for("Ready in ")
    processes = command.descendants()
    killed = 0
    while command.process.poll() is None and killed < 20:
        for worker in command.workers():
            worker.kill()
            killed += 1
        time.sleep(0.05)
    assert command.ends() == 1
    assert "Workers of the API ended 6 times within 60 seconds." in command.output
    assert_gone(processes)


def test_a_second_signal_ends_it_at_once(start, ports):
    command = start(TINY, *ports, *TWO)
    command.wait_for("Ready in ")
    processes = command.descendants()
    Asking("GET", at(ports, "/stuck"))
    command.wait_for("stuck request")
    command.process.send_signal(signal.SIGTERM)
    command.wait_for("Stopping")
    assert command.process.poll() is None
    command.process.send_signal(signal.SIGTERM)
    assert command.ends(5) == 130
    assert_gone(processes)


def test_a_terminal_asks_only_the_command_to_end(start, ports):
    command = start(TINY, *ports, *TWO)
    command.wait_for("Ready in ")
    group = os.getpgid(command.process.pid)
    assert group not in {os.getpgid(worker.pid) for worker in command.workers()}


def test_an_application_that_refuses_to_start_is_code_1(start, ports):
    command = start(TINY, *ports, *TWO, TINY_ASGI_REFUSES="1")
    assert command.ends() == 1
    told = re.findall(r"worker\[(\d+)\] \| The API cannot start: no readout\.", command.output)
    assert told  # by process
    assert str(command.process.pid) not in told
    assert "A worker of the API failed." in command.output


def test_the_certainty_that_it_can_never_work_is_code_1_with_the_reason(start, ports):
    command = start(TINY, *ports, *TWO, "--grandchild", TINY_ASGI_UNFIT="1")
    command.wait_for("starting the engine")  # it may be over before that has started
    processes = command.descendants()
    assert command.ends() == 1
    assert "waiting cannot help: The tiny model does not fit." in command.output
    assert_gone(processes)


def test_what_never_becomes_ready_is_code_1(start, ports):
    command = start(
        TINY, *ports, *TWO, "--connect", "http://127.0.0.1:9", OPENJEV_STARTUP_TIMEOUT="2"
    )
    assert command.ends() == 1
    assert "Not ready within 2 seconds (OPENJEV_STARTUP_TIMEOUT)" in command.output
    assert "at http://127.0.0.1:9: The engine cannot be reached." in command.output


TOLD_TOO_LATE = """
import asyncio, socket, time
from backend.serving.worker import Starter
ours, theirs = socket.socketpair()
async def main():
    Starter(theirs).listen()
asyncio.run(main())
ours.sendall(b"stop\\n")
ours.close()
time.sleep(60)
"""


def test_one_that_ends_already_may_be_told_to():
    ended = subprocess.run(
        [sys.executable, "-c", TOLD_TOO_LATE], cwd=ROOT, capture_output=True, timeout=30, text=True
    )
    assert (ended.returncode, ended.stderr) == (1, "")  # ours is the end of its starter


@pytest.fixture
def settings():
    """What the workers below are held to."""
    return {}


@pytest.fixture
async def workers(settings):
    """Two that are not started; what they run, the test may choose."""
    config, _ = load_config(settings)
    with open_listener("127.0.0.1", free_port(), "--port") as listener:
        async with Workers(
            2, listener, application="", server="uvicorn", environment=os.environ, config=config
        ) as workers:
            yield workers


def program(text):
    return [sys.executable, "-c", text]


MISSING = ["/missing/python"]
KILLED = program("import os; os.kill(os.getpid(), 9)")
TERMINATED = program("import os; os.kill(os.getpid(), 15)")
ENDS = program("")
LEAVES = program("import os; os.write(0, b'leaving\\n')")
DEAF = program("import time; time.sleep(60)")
SILENT = program("import os, time; os.write(0, b'ready\\n'); time.sleep(60)")
FAILS = program("raise SystemExit(1)")
FAILS_LATER = program("import os; os.write(0, b'ready\\n'); raise SystemExit(1)")
REFUSES = program("import os, time; os.write(0, b'refused so\\n'); time.sleep(60)")
REFUSES_LATER = program("import os, time; os.write(0, b'ready\\nrefused so\\n'); time.sleep(60)")


def note_starts(workers, monkeypatch):
    """Each start of a worker from now on, and whether it waits before it accepts."""
    starts = []
    start = workers._start

    async def noting(index, *, late):
        worker = await start(index, late=late)
        starts.append((worker, late))
        return worker

    monkeypatch.setattr(workers, "_start", noting)
    return starts


async def becomes(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - no such event
            await asyncio.sleep(0.01)


async def refusal(workers):
    async with asyncio.timeout(20):
        return await workers.refused()


MUCH_LESS_THAN_A_REPLACEMENT = REPLACEMENT_SECONDS / 2
GIVEN_UP = f"Workers of the API ended {MOST_DEATHS + 1} times within 60 seconds."


async def test_workers_that_cannot_be_started_are_a_refusal(workers):
    workers._argv = MISSING
    with pytest.raises(StartupRefused, match="a worker could not be started: No such file"):
        await workers.startup()


async def test_a_worker_that_cannot_be_replaced_is_given_up(workers):
    workers._argv = KILLED
    await workers.startup()
    workers._argv = MISSING
    assert await refusal(workers) == (
        "A worker of the API could not be replaced: No such file or directory."
    )


async def test_one_that_cannot_be_spoken_to_is_not_left(workers, monkeypatch):
    others = set(psutil.Process().children())
    processes = set()

    async def fails(**_):
        processes.update(set(psutil.Process().children()) - others)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(asyncio, "open_connection", fails)
    workers._argv = DEAF
    with pytest.raises(StartupRefused, match="could not be started: Too many open files"):
        await workers.startup()
    assert len(processes) == 1
    assert_gone(list(processes))


async def test_no_place_for_what_they_share_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    config, _ = load_config({})
    with (
        open_listener("127.0.0.1", free_port(), "--port") as listener,
        pytest.raises(LaunchError, match=r"temporary directory \(No such file or directory\)"),
    ):
        Workers(2, listener, application="", server="", environment={}, config=config)


async def test_those_that_do_not_end_are_killed_with_the_context(workers):
    workers._argv = DEAF
    others = set(psutil.Process().children())
    await workers.startup()
    processes = set(psutil.Process().children()) - others
    assert len(processes) == 2
    await workers.stop_accepting()
    await workers.shutdown(0.1)
    await workers.finish_answers(0.1)
    assert all(process.is_running() for process in processes)
    await workers.__aexit__(None, None, None)
    assert_gone(processes)


async def test_those_that_nobody_follows_yet_are_killed_with_the_context(workers):
    workers._argv = DEAF
    others = set(psutil.Process().children())
    await workers.startup()
    processes = set(psutil.Process().children()) - others
    assert len(processes) == 2
    await workers.__aexit__(None, None, None)
    assert_gone(processes)


async def test_a_start_that_is_cancelled_leaves_no_connection(workers, monkeypatch):
    made = []

    async def never(*arguments, stdin, **options):
        made.append(stdin)
        await asyncio.Event().wait()

    before = psutil.Process().num_fds()
    monkeypatch.setattr(asyncio, "create_subprocess_exec", never)
    starting = asyncio.create_task(workers.startup())
    await becomes(lambda: made)
    starting.cancel()
    await asyncio.wait((starting,))
    assert psutil.Process().num_fds() == before


async def test_deaths_long_ago_do_not_count(workers, monkeypatch):
    monkeypatch.setattr("backend.serving.workers.DEATHS_SECONDS", 0.0)
    workers._argv = KILLED
    await workers.startup()
    await becomes(lambda: len(workers._deaths) > MOST_DEATHS)
    workers._argv = DEAF
    assert not workers._refusal.done()


@pytest.mark.parametrize("argv", [KILLED, ENDS, FAILS_LATER])
async def test_an_end_that_nobody_asked_for_is_a_death(workers, argv):
    workers._argv = argv
    await workers.startup()
    assert await refusal(workers) == GIVEN_UP


async def test_one_that_has_never_worked_and_fails_is_given_up_at_once(workers):
    workers._argv = FAILS
    await workers.startup()
    assert await refusal(workers) == "A worker of the API failed. It has said why."
    assert not workers._deaths


@pytest.mark.parametrize("argv", [LEAVES, TERMINATED])
async def test_an_end_that_was_asked_for_is_no_death(workers, monkeypatch, caplog, argv):
    monkeypatch.setattr("backend.serving.workers.REPLACEMENT_SECONDS", 0.0)
    workers._argv = argv
    await workers.startup()
    await becomes(lambda: caplog.text.count("was asked to end") > 2 * MOST_DEATHS)
    assert not workers._deaths
    assert not workers._refusal.done()


async def test_one_that_is_asked_again_and_again_is_replaced_at_leisure(workers, monkeypatch):
    monkeypatch.setattr("backend.serving.workers.REPLACEMENT_SECONDS", 1.0)
    starts = note_starts(workers, monkeypatch)
    workers._argv = LEAVES
    await workers.startup()
    await becomes(lambda: len(starts) >= 6)
    times = [worker.started_at for worker, _ in starts if worker.index == 0]
    assert len(times) > 1
    assert all(later - earlier >= 1.0 for earlier, later in pairwise(times))


async def test_a_replacement_says_that_all_are_starting_but_waits_where_others_serve(
    workers, monkeypatch
):
    monkeypatch.setattr("backend.serving.workers.DEATHS_SECONDS", 0.0)  # however many there are
    starts = note_starts(workers, monkeypatch)
    workers._argv = KILLED
    await workers.startup()
    await becomes(lambda: len(starts) > 2)
    assert not any(late for _, late in starts)
    workers._argv = SILENT
    await becomes(workers._all_ready.is_set)
    before = len(starts)
    workers._workers[0].process.kill()
    await becomes(lambda: len(starts) > before)
    assert starts[-1][1]


async def test_packages_where_the_command_is_started_are_not_taken_for_ours(
    workers, monkeypatch, tmp_path
):
    (tmp_path / "backend").mkdir()
    (tmp_path / "backend" / "__init__.py").write_text("raise SystemExit(42)")
    monkeypatch.chdir(tmp_path)
    await workers.startup()
    # ours finds no application
    assert await refusal(workers) == "A worker of the API failed. It has said why."


async def test_the_end_waits_for_no_replacement(workers, caplog):
    workers._argv = LEAVES
    await workers.startup()
    await becomes(lambda: caplog.text.count("was asked to end") == 2)
    await workers.stop_accepting()
    async with asyncio.timeout(MUCH_LESS_THAN_A_REPLACEMENT):
        await workers.shutdown(60)
    assert all(task.done() for task in workers._tasks)
    assert caplog.text.count("was asked to end") == 2


async def test_a_refusal_of_one_that_has_worked_ends_nothing(workers):
    workers._argv = REFUSES_LATER
    await workers.startup()
    async with asyncio.timeout(20):
        await workers.ready()
    workers._argv = REFUSES
    for worker in workers._workers.values():
        worker.process.kill()
    heard = workers._hear
    said = []
    workers._hear = lambda worker, line: (heard(worker, line), said.append(line))
    await becomes(lambda: said.count("refused so") == 2)
    assert not workers._refusal.done()


class TestSilence:
    @pytest.fixture
    def settings(self):
        return {"OPENJEV_HANG_TIMEOUT": "1", "OPENJEV_STARTUP_TIMEOUT": "2"}

    async def test_one_that_was_ready_has_the_one_time(self, workers, caplog):
        workers._argv = SILENT
        await workers.startup()
        workers._counters.running[0] = 7  # what it has admitted is taken back
        await becomes(lambda: len(workers._deaths) >= 2)
        said = (
            r"\(process \d+\) has not moved for 1 seconds \(OPENJEV_HANG_TIMEOUT\) and is killed\."
        )
        assert re.search(said, caplog.text)
        assert workers._counters.running[0] == 0
        assert "ended by itself" not in caplog.text

    async def test_one_that_starts_has_the_other(self, workers, caplog):
        workers._argv = DEAF
        await workers.startup()
        await becomes(lambda: workers._deaths)
        assert "has not moved for 2 seconds (OPENJEV_STARTUP_TIMEOUT)" in caplog.text
        assert "HANG_TIMEOUT" not in caplog.text

    async def test_those_that_hang_again_and_again_are_given_up(self, workers):
        workers._argv = SILENT
        await workers.startup()
        assert await refusal(workers) == GIVEN_UP
