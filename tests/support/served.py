"""The whole product as a user starts it: `manage.py runbackend` in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from tests.support.loopback import ROOT, wait_until_healthy

STOP_SECONDS = 30.0


def tiny_settings(gguf: Path) -> dict[str, str]:
    """The settings that put the tiny random model behind the product."""
    return {
        "OPENJEV_PROFILE": "embedded-0.5b",
        "OPENJEV_MODEL": str(gguf),
        "OPENJEV_SERVED_MODEL_NAME": "tiny/random",
    }


@dataclass(frozen=True)
class Served:
    """A running `runbackend`.

    Attributes:
        url: of the public API.
        engine_url: of its engine.
        process: the command itself.
        log: where everything it prints goes.
    """

    url: str
    engine_url: str
    process: subprocess.Popen[bytes]
    log: Path

    def family(self) -> list[psutil.Process]:
        """The command and every process below it."""
        command = psutil.Process(self.process.pid)
        return [command, *command.children(recursive=True)]

    def engine(self) -> psutil.Process:
        """The process that runs the model."""
        marks = "backend.embedded"
        (engine,) = [
            process
            for process in self.family()
            if marks in process.cmdline() and process.cmdline()[1] == "-m"
        ]
        return engine

    def evaluate(self, body: object) -> httpx.Response:
        """Post one evaluation."""
        return httpx.post(f"{self.url}/v1/systemone", json=body, timeout=120)


@contextmanager
def serve(
    tmp_path: Path,
    *,
    port: int,
    backend_port: int,
    seconds: float,
    environ: Mapping[str, str],
    connect: str | None = None,
    program: Sequence[str] = ("manage.py",),
) -> Iterator[Served]:
    """Start `runbackend`, wait until it is ready, and stop it at the end.

    Args:
        tmp_path: where the log goes.
        port: of the API.
        backend_port: of the engine that is started.
        seconds: how long the start may take.
        environ: `OPENJEV_*` variables; those of the surrounding environment do not count.
        connect: address of an engine that runs already; none is started then.
        program: what Python runs instead, if it must do something first.
    """
    log = tmp_path / "runbackend.log"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("OPENJEV_")}
    engine_url = connect or f"http://127.0.0.1:{backend_port}"
    command = [sys.executable, *program, "runbackend", "--port", str(port)]
    command += ["--connect", connect] if connect else ["--backend-port", str(backend_port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**inherited, **environ},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    served = Served(f"http://127.0.0.1:{port}", engine_url, process, log)
    try:
        wait_until_healthy(served.url, process, seconds=seconds, log=log)
        yield served
    except BaseException:
        print(log.read_text())  # which pytest shows with the failure
        raise
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(STOP_SECONDS)
