"""Starts what is measured, each as a process of its own on loopback, and ends it again.

Servers share one core and the load and the stub another, so that only the servers are measured.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from backend.profiles import PROFILES

ROOT = Path(__file__).resolve().parents[2]
PROFILE = "embedded-0.5b"  # its tokenizer; the weights themselves are not read
MODEL = PROFILES[PROFILE].served_model_name
_START_SECONDS = 120.0
_STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Stack:
    """One way to serve evaluations.

    Attributes:
        name: for the tables.
        command: after the Python interpreter; `{port}` and `{engine}` are filled in.
        health: path that answers 200 when it is ready.
    """

    name: str
    command: tuple[str, ...]
    health: str = "/health"


def uvicorn(application: str, *options: str) -> tuple[str, ...]:
    """Write the command that serves `application` with uvicorn."""
    command = f"-m uvicorn {application} --port {{port}} --loop uvloop --http httptools"
    return (*command.split(), "--no-access-log", "--log-level", "warning", *options)


HTTPX, AIOHTTP, FLOOR = "FastAPI + httpx", "FastAPI + aiohttp", "raw ASGI (floor)"
UVICORN, DAPHNE = "OpenJev, uvicorn", "OpenJev, Daphne"

_OPENJEV = ("manage.py", "runbackend", "--connect", "{engine}", "--port", "{port}")

STACKS = (
    Stack(HTTPX, uvicorn("benchmarks.api.rivals:httpx_app", "--factory"), "/docs"),
    Stack(AIOHTTP, uvicorn("benchmarks.api.rivals:aiohttp_app", "--factory"), "/docs"),
    Stack(FLOOR, uvicorn("benchmarks.api.floor:application")),
    Stack(UVICORN, (*_OPENJEV, "--server", "uvicorn")),
    Stack(DAPHNE, (*_OPENJEV, "--server", "daphne")),
)


def chosen(only: Sequence[str] | None) -> tuple[Stack, ...]:
    """Give the stacks whose name holds one of `only`; all without it."""
    found = tuple(s for s in STACKS if not only or any(text in s.name for text in only))
    if not found:
        raise SystemExit(f"No stack is named so. There are: {', '.join(s.name for s in STACKS)}.")
    return found


def own_cores() -> tuple[int | None, int | None]:
    """Give the servers a core and the load, this process included, another, if there are two."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return None, None
    os.sched_setaffinity(0, {cores[1]})
    return cores[0], cores[1]


@dataclass(frozen=True, slots=True)
class Running:
    """A stack that serves."""

    stack: Stack
    port: int
    process: psutil.Process

    def cpu_seconds(self) -> float:
        """CPU time used so far, user and system, of the process and its children."""
        family = [self.process, *self.process.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in family)


@contextmanager
def stub(port: int, model: str, delay: float, core: int | None) -> Iterator[str]:
    """Run the stub engine; gives its address."""
    command = ["-m", "benchmarks.api.stub_engine", "--port", str(port)]
    command += ["--model", model, "--delay", str(delay)]
    url = f"http://127.0.0.1:{port}"
    with _process(command, {}, core) as process:
        _wait(url + "/health", process)
        yield url


@contextmanager
def running(
    stacks: tuple[Stack, ...], engine: str, first_port: int, core: int | None
) -> Iterator[list[Running]]:
    """Run `stacks` in front of `engine`, all of them idle on one core."""
    environ = {
        "OPENJEV_PROFILE": PROFILE,
        "OPENJEV_BACKEND_URL": engine,
        "OPENJEV_MAX_INPUT_TOKENS": "32768",
        "OPENJEV_MAX_CONCURRENT_REQUESTS": "64",  # as many as connect: refusals are fast, too
        "OPENJEV_MAX_CONCURRENT_BRANCHES": "256",
    }
    with ExitStack() as stack:
        served = []
        for port, one in enumerate(stacks, start=first_port):
            command = [part.format(port=port, engine=engine) for part in one.command]
            process = stack.enter_context(_process(command, environ, core))
            served.append(Running(one, port, process))
        for one_served in served:
            url = f"http://127.0.0.1:{one_served.port}{one_served.stack.health}"
            _wait(url, one_served.process)
        yield served


@contextmanager
def _process(
    command: list[str], environ: Mapping[str, str], core: int | None
) -> Iterator[psutil.Process]:
    # ended from outside, this process still ends what it started
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("OPENJEV_")}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env={**inherited, **environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        watched = psutil.Process(process.pid)
        if core is not None:
            watched.cpu_affinity([core])
        yield watched
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str, process: psutil.Process) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.status() != psutil.STATUS_ZOMBIE:
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"Nothing became ready at {url}.")
