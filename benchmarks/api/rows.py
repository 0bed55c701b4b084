"""What was measured of one stack under one load, and how it is told."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.api.goals import Goal
from benchmarks.api.servers import AIOHTTP, DAPHNE, FLOOR, HTTPX, UVICORN

_OWN_MS = 3.0
_TAIL = 5.0
_RATIOS = (
    (UVICORN, HTTPX, 0.0, 16, 10.0),
    (UVICORN, AIOHTTP, 0.0, 16, 2.0),
    (UVICORN, FLOOR, 0.0, 16, 0.5),
    (DAPHNE, HTTPX, 0.0, 16, 6.0),
    (DAPHNE, AIOHTTP, 0.0, 16, 1.4),
    (UVICORN, AIOHTTP, 0.015, 64, 3.0),
)
"""Stack, what it is compared with, delay, connections, how many times as fast it has to be."""


@dataclass(frozen=True, slots=True)
class Row:
    """One stack under one load; medians over the rounds, where nothing else is said.

    Attributes:
        stack: its name.
        delay: of the stub engine, in seconds.
        connections: at the same time.
        rate: evaluations per second.
        p50, p95, p99: latency in milliseconds.
        cpu: CPU time of the server per evaluation, in milliseconds; the lower quartile.
        errors: answers other than 200, over all rounds.
    """

    stack: str
    delay: float
    connections: int
    rate: float
    p50: float
    p95: float
    p99: float
    cpu: float
    errors: int


def table(rows: Sequence[Row]) -> str:
    """The rows of one load in Markdown; ratios tell how many times as good as the first it is."""
    first = rows[0]
    lines = [
        f"{first.connections} connections, engine delay {1000 * first.delay:g} ms",
        "",
        "| stack | evaluations/s | ratio | p50 ms | p95 ms | p99 ms | CPU ms | ratio | errors |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.stack} | {r.rate:.0f} | {r.rate / first.rate:.2f} | {r.p50:.1f} | {r.p95:.1f} "
        f"| {r.p99:.1f} | {r.cpu:.2f} | {first.cpu / r.cpu:.2f} | {r.errors} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def goals(rows: Sequence[Row]) -> list[Goal]:
    """What OpenJev has to show beside the others, as far as they were measured.

    Judged by what a second of CPU answers, which is what a saturated core answers in a second. By
    the clock a shared machine measures its neighbours, too.
    """
    found = {(row.stack, row.delay, row.connections): row for row in rows}
    ours = [row for row in rows if row.stack in {UVICORN, DAPHNE}]
    compared = [
        Goal(
            f"evaluations in a CPU second, {name} to {other}, {connections} connections, "
            f"{1000 * delay:g} ms",
            found[other, delay, connections].cpu / found[name, delay, connections].cpu,
            times,
            at_least=True,
        )
        for name, other, delay, connections, times in _RATIOS
        if {(name, delay, connections), (other, delay, connections)} <= set(found)
    ]
    alone = [
        Goal(f"{row.stack}: p50 in ms at one connection, engine at once", row.p50, _OWN_MS)
        for row in ours
        if not row.delay and row.connections == 1
    ]
    busy = [row for row in ours if row.connections > 1]
    tails = [Goal(f"{_load(row)}: p99 to p50", row.p99 / row.p50, _TAIL) for row in busy]
    errors = [Goal(f"{_load(row)}: errors", row.errors, 0) for row in busy]
    return compared + alone + tails + errors


def _load(row: Row) -> str:
    return f"{row.stack}, {row.connections} connections, {1000 * row.delay:g} ms"
