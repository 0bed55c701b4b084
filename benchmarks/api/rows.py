"""What was measured of one stack under one load, and how it is told."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One stack under one load; medians over the rounds.

    Attributes:
        stack: its name.
        delay: of the stub engine, in seconds.
        connections: at the same time.
        rate: evaluations per second.
        p50, p95, p99: latency in milliseconds.
        cpu: CPU time of the server per evaluation, in milliseconds.
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
    """The rows of one load, with ratios to the first of them, in Markdown."""
    first = rows[0]
    lines = [
        f"{first.connections} connections, engine delay {1000 * first.delay:g} ms",
        "",
        "| stack | evaluations/s | ratio | p50 ms | p95 ms | p99 ms | CPU ms | errors |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.stack} | {r.rate:.0f} | {r.rate / first.rate:.2f} | {r.p50:.1f} | {r.p95:.1f} "
        f"| {r.p99:.1f} | {r.cpu:.2f} | {r.errors} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"
