"""The real sglang-router in front of engines, started with the options of `docs/scaling.md`."""

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.loopback import free_port

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
START_SECONDS = 60.0
# The same mechanisms in less time. Of two equal options the router takes the last.
_QUICK = {
    "--worker-startup-check-interval": "1",
    "--health-check-interval-secs": "1",
    "--cb-timeout-duration-secs": "2",
    "--shutdown-grace-period-secs": "1",
}
_ANSWERED = re.compile(r'^smg_worker_cb_outcomes_total\{worker="(.+)",outcome="success"\} (\d+)$')


@dataclass(frozen=True)
class Router:
    """A running router.

    Attributes:
        url: where it takes requests.
        metrics_url: where it tells its metrics.
    """

    url: str
    metrics_url: str

    def healthy(self) -> int:
        """How many engines it takes for healthy; 0 while it starts."""
        try:
            readiness = httpx.get(f"{self.url}/readiness", timeout=5).json()
        except httpx.TransportError:
            return 0
        return int(readiness.get("healthy_workers", 0))

    def load(self) -> dict[str, int]:
        """Calls under way, by the address of the engine."""
        workers = httpx.get(f"{self.url}/workers", timeout=5).json()["workers"]
        return {worker["url"]: worker["load"] for worker in workers}

    def answered(self) -> dict[str, int]:
        """Calls answered well since the start, by the address of the engine."""
        lines = httpx.get(self.metrics_url, timeout=5).text.splitlines()
        return {found[1]: int(found[2]) for line in lines if (found := _ANSWERED.match(line))}


def documented_options() -> list[str]:
    """What `docs/scaling.md` says to start the router with."""
    text = DOCUMENT.read_text(encoding="utf-8").replace("\\\n", " ")
    (command,) = re.findall(r"^python -m sglang_router\.launch_router (.+)$", text, re.MULTILINE)
    return shlex.split(command)


@contextmanager
def running_router(engines: Sequence[str], log: Path, *options: str) -> Iterator[Router]:
    """Start the router, wait until it takes every engine for healthy, and stop it at the end.

    Args:
        engines: their addresses.
        log: where it prints to.
        options: more of them, which replace the documented ones.
    """
    port, metrics_port = free_port(), free_port()
    command = [sys.executable, "-m", "sglang_router.launch_router", *documented_options()]
    command += [word for option in _QUICK.items() for word in option]
    command += ["--port", str(port), "--prometheus-port", str(metrics_port)]
    command += [*options, "--worker-urls", *engines]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    router = Router(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics_port}/metrics")
    try:
        deadline = time.monotonic() + START_SECONDS
        while router.healthy() < len(engines):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield router
    finally:
        process.terminate()
        process.wait(10)
