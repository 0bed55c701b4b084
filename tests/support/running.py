"""A command of ours as a process, with what it says, to be given real signals."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
import psutil

from tests.support.loopback import ROOT, free_port

TINY = ["-m", "tests.support.run_tiny"]
COMMAND = ["manage.py", "runbackend"]


class Running:
    """A started command, with what it has written so far.

    Args:
        argv: what Python runs.
        environ: variables besides those of the tests.
        python: which Python.
    """

    def __init__(
        self, argv: Sequence[str], environ: Mapping[str, str], python: str = sys.executable
    ) -> None:
        self.process = subprocess.Popen(
            [python, *argv],
            cwd=ROOT,
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            with self._more:
                self.output += line
                self._more.notify_all()
        with self._more:
            self._more.notify_all()

    def wait_for(self, text: str, seconds: float = 40) -> None:
        """Wait until it has said `text`; fail when it ends, or time runs out, before."""
        with self._more:
            found = self._more.wait_for(
                lambda: text in self.output or not self._reader.is_alive(), seconds
            )
        assert found, self.output
        assert text in self.output, self.output

    def descendants(self) -> list[psutil.Process]:
        """Every process below it."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def engine(self) -> psutil.Process:
        """The engine itself: the child of the keeper."""
        children = psutil.Process(self.process.pid).children()
        (keeper,) = [child for child in children if "keeper.py" in child.cmdline()[2]]
        return keeper.children()[0]

    def workers(self) -> list[psutil.Process]:
        """The processes of an API that has several."""
        children = psutil.Process(self.process.pid).children()
        commands = [child.as_dict(["cmdline"])["cmdline"] or [] for child in children]
        program = "backend.serving.worker"
        return [c for c, argv in zip(children, commands, strict=True) if program in argv]

    def ends(self, seconds: float = 20) -> int:
        """Wait for its end; return its exit code."""
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    def stop(self) -> None:
        """End it and everything below it, whatever state it is in."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in self.descendants():
                child.kill()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Ports:
    """Free ports for API and engine."""

    def __init__(self) -> None:
        self.api, self.engine = free_port(), free_port()

    def __iter__(self) -> Iterator[str]:
        """The options that choose them."""
        return iter(("--port", str(self.api), "--backend-port", str(self.engine)))


class Asking(threading.Thread):
    """A request that runs beside the test.

    Attributes:
        answer: the response, or why there was none; `None` until then.
    """

    def __init__(self, method: str, url: str, **options: Any) -> None:
        super().__init__(daemon=True)
        self.answer: httpx.Response | httpx.TransportError | None = None
        self._request = (method, url, options)
        self.start()

    def run(self) -> None:
        """Ask."""
        method, url, options = self._request
        try:
            self.answer = httpx.request(method, url, timeout=60, **options)
        except httpx.TransportError as error:
            self.answer = error

    def status(self) -> int:
        """Wait for the answer; it must be one."""
        self.join(60)
        assert isinstance(self.answer, httpx.Response), self.answer
        return self.answer.status_code


def assert_gone(processes: list[psutil.Process]) -> None:
    """Fail unless they end soon."""
    _, alive = psutil.wait_procs(processes, timeout=5)
    alive = [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert alive == []
