"""Engine processes: what they say, how they end, and that nothing of them stays."""

import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from backend import supervisor
from backend.supervisor import MAX_LINE, EngineProcess, LineRelay

ROOT = Path(__file__).parent.parent.parent


def engine(code, *, secrets=(), **environment):
    return EngineProcess(
        [sys.executable, "-u", "-c", code],
        environment={**os.environ, **environment},
        cwd=ROOT,
        secrets=secrets,
    )


def group_members(group):
    members = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
        except (ProcessLookupError, psutil.Error):
            continue
    return members


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - other processes notify nobody
            await asyncio.sleep(0.01)


@pytest.fixture
def heard(caplog):
    caplog.set_level(logging.INFO, logger="openjev.engine")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "openjev.engine"]


class TestLineRelay:
    async def relay(self, *chunks, secrets=()):
        lines = []
        relay = LineRelay(lines.append, secrets)
        relay.connection_made(asyncio.Transport())
        for chunk in chunks:
            relay.data_received(chunk)
        relay.connection_lost(None)
        assert relay.closed.done()
        return lines

    async def test_lines_are_whole_whatever_the_chunks(self):
        assert await self.relay(b"one\ntw", b"o\r\n\n  \nthr", b"ee") == ["one", "two", "three"]

    async def test_a_progress_bar_is_many_lines(self):
        assert await self.relay(b"10%\r20%\r") == ["10%", "20%"]

    async def test_bytes_that_are_no_text_are_shown_as_such(self):
        assert await self.relay(b"\xff\xfe!\n") == ["\ufffd\ufffd!"]

    async def test_long_lines_are_cut(self):
        (line,) = await self.relay(*[b"x" * 10_000] * 50, b"\n")
        assert line == "x" * MAX_LINE + "…"

    async def test_secrets_are_hidden_across_chunks(self):
        lines = await self.relay(b"key=s3c", b"ret and s3cret\n", secrets=["s3cret", ""])
        assert lines == ["key=*** and ***"]

    @pytest.mark.parametrize("padding", range(MAX_LINE - 8, MAX_LINE + 2))
    async def test_a_secret_at_the_cut_is_hidden(self, padding):
        (line,) = await self.relay(b"x" * padding + b"s3cret" * 3000 + b"\n", secrets=["s3cret"])
        assert "s3" not in line
        assert len(line) <= MAX_LINE + 1

    async def test_nothing_of_a_secret_shows_where_the_kept_part_ends(self):
        for offset in range(8):
            stream = b"y" * offset + b"s3cret" * 5000
            (line,) = await self.relay(stream, secrets=["s3cret"])
            assert "s3" not in line


@pytest.mark.process
class TestEngineProcess:
    async def test_its_lines_are_relayed_and_its_code_returned(self, heard):
        process = engine("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
        await process.start()
        assert await process.wait() == 7
        assert await process.last_words() == ["out", "err"]
        assert heard() == ["out", "err"]
        await process.stop(0)

    async def test_the_level_a_line_begins_with_is_its_level(self, caplog):
        caplog.set_level(logging.INFO, logger="openjev.engine")
        process = engine("print('INFO ready\\nERROR broken: a part\\nINFORMAL line\\nINFO')")
        await process.start()
        await process.wait()
        await process.last_words()
        told = [(r.levelname, r.getMessage()) for r in caplog.records if "engine" in r.name]
        assert told == [
            ("INFO", "ready"),
            ("ERROR", "broken: a part"),
            ("INFO", "INFORMAL line"),
            ("INFO", "INFO"),
        ]
        await process.stop(0)

    async def test_only_the_last_lines_are_last_words(self):
        process = engine("for n in range(100): print(n)")
        await process.start()
        await process.wait()
        assert await process.last_words() == [str(n) for n in range(80, 100)]
        await process.stop(0)

    async def test_secrets_do_not_reach_the_log(self, heard):
        process = engine("import os; print(os.environ['KEY'])", secrets=["hunter2"], KEY="hunter2")
        await process.start()
        await process.wait()
        await process.last_words()
        assert heard() == ["***"]
        await process.stop(0)

    async def test_a_command_that_does_not_exist_says_so(self):
        process = EngineProcess(["/no/such/engine"], environment=os.environ, cwd=ROOT)
        await process.start()
        assert await process.wait() == 127
        assert "cannot run /no/such/engine" in (await process.last_words())[-1]
        await process.stop(0)

    async def test_death_by_signal_is_told(self):
        process = engine("import os; os.kill(os.getpid(), 9)")
        await process.start()
        assert await process.wait() == 128 + 9
        await process.stop(0)

    async def test_exit_is_noticed_while_a_grandchild_holds_the_pipe(self, heard):
        process = engine(
            "import subprocess, sys; subprocess.Popen([sys.executable, '-c', "
            "'import time; time.sleep(300)']); print('bye'); sys.exit(3)"
        )
        began = time.monotonic()
        await process.start()
        group = process.group
        async with asyncio.timeout(10):
            assert await process.wait() == 3
        assert time.monotonic() - began < 8
        await until(lambda: not group_members(group))
        assert await process.last_words() == ["bye"]
        await process.stop(0)

    async def test_exit_is_noticed_while_an_escaped_grandchild_holds_the_pipe(self):
        process = engine(
            "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', "
            "'import time; time.sleep(20)'], start_new_session=True); print(child.pid)"
        )
        await process.start()
        assert await process.wait() == 0
        (escaped,) = await process.last_words()
        await process.stop(0)
        os.kill(int(escaped), signal.SIGKILL)

    async def test_stop_lets_it_end_by_itself(self, heard):
        process = engine(
            "import signal, sys, time\n"
            "signal.signal(signal.SIGTERM, lambda *_: (print('closing'), sys.exit(0)))\n"
            "print('up')\ntime.sleep(300)"
        )
        await process.start()
        await until(lambda: "up" in heard())
        await process.stop(10)
        assert await process.wait() == 0
        assert await process.last_words() == ["up", "closing"]
        assert heard() == ["up"]  # an ordinary end is not worth a line
        assert not group_members(process.group)

    async def test_only_the_main_process_is_asked_to_end(self, heard):
        process = engine(
            "import signal, subprocess, sys, time\n"
            "told = 'import signal, time; signal.signal(signal.SIGTERM, lambda *_: print(1 / 0))'\n"
            "told += '; print(2); time.sleep(300)'\n"
            "command = [sys.executable, '-u', '-c', told]\n"
            "child = subprocess.Popen(command, stdout=subprocess.PIPE)\n"
            "child.stdout.readline()\n"
            "def end(*_):\n"
            "    time.sleep(0.3)\n"  # whatever is on its way to the child arrives
            "    print('child', child.poll())\n"
            "    sys.exit(0)\n"
            "signal.signal(signal.SIGTERM, end)\n"
            "print('up')\ntime.sleep(300)"
        )
        await process.start()
        await until(lambda: "up" in heard())
        await process.stop(10)
        assert (await process.last_words())[-1] == "child None"
        await until(lambda: not group_members(process.group))

    async def test_a_listener_hears_what_is_logged(self, heard):
        process = engine("print('\\033[32mINFO\\033[0m Loading weights\\nINFO  ')")
        lines = []
        process.listen(lines.append)
        await process.start()
        await process.wait()
        await process.last_words()
        assert lines == heard() == ["Loading weights", "INFO  "]
        await process.stop(0)

    async def test_stop_kills_what_does_not_end(self, heard):
        process = engine(
            "import signal, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up')\ntime.sleep(300)"
        )
        await process.start()
        await until(lambda: "up" in heard())
        await process.stop(0.1)
        assert await process.wait() < 0
        await until(lambda: not group_members(process.group))

    async def test_stop_without_grace_kills_at_once(self, heard):
        process = engine("print('up')\nimport time; time.sleep(300)")
        await process.start()
        await until(lambda: "up" in heard())
        await process.stop(0)
        await until(lambda: not group_members(process.group))

    async def test_what_was_not_started_can_be_stopped_but_not_awaited(self):
        process = engine("")
        assert process.group is None
        await process.stop(1)
        with pytest.raises(RuntimeError):
            await process.wait()

    async def test_the_keepers_handling_of_signals_is_not_handed_on(self):
        code = "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
        # -S: so that no site package installs a handler of its own
        process = EngineProcess([sys.executable, "-S", "-c", code], environment={}, cwd=ROOT)
        await process.start()
        await process.wait()
        assert await process.last_words() == ["True"]
        await process.stop(0)

    async def test_a_loop_closed_meanwhile_is_no_error(self):
        loop = asyncio.new_event_loop()
        future = loop.create_future()
        loop.close()

        class Gone:
            pid = 2**22 + 1

            def wait(self):
                return 0

        supervisor.EngineProcess._await_exit(loop, Gone(), future)
        assert not future.done()
