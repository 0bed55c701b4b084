"""What the API tier costs, beside what one would write instead, and beside the least possible.

    python -m benchmarks.api [--delays 0 0.015] [--connections 1 16 64] [--seconds 5] [--rounds 3]

All stacks run at the same time in front of one stub engine, on one core, and are loaded in turns
(one connection count, every stack, again and again), so that whatever else the machine does meets
all of them. Each request has a state of its own of about 300 tokens and the same four questions:
five engine calls. Prints, and writes with `--output`, requests per second, latency and CPU time as
medians over the rounds, and each as a ratio to the first stack; `--picture` draws them.
"""

import argparse
import json
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from backend.profiles import PROFILES
from benchmarks.api.load import Tally, load
from benchmarks.api.servers import PROFILE, STACKS, Running, Stack, running, stub

_WORDS = (
    "invoice", "customer", "payment", "twice", "charged", "refund", "account", "support",
    "message", "urgent", "overdue", "delivery", "printer", "broken", "screen", "password",
    "reset", "login", "office", "monday", "manager", "reply",
)  # fmt: skip
_QUESTIONS = {
    "refund": {"type": "noul", "instructions": "Does the customer ask for money back?"},
    "angry": {"type": "noul", "instructions": "Is the customer angry?"},
    "department": {
        "type": "choice",
        "instructions": "Which department should handle this message?",
        "criteria": {
            "billing": "Invoices, charges, payments and refunds",
            "technical": "Errors, outages and broken features",
            "account": "Logins, passwords and profile changes",
        },
    },
    "urgency": {
        "type": "score",
        "instructions": "How soon does the customer need a reaction?",
        "criteria": ["It can wait for weeks", "Within some days", "Today"],
    },
}
_STATE_WORDS = 280


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


def bodies() -> Iterator[bytes]:
    """Endless evaluations, no two with the same state."""
    number = 0
    while True:
        number += 1
        words = [_WORDS[(number * (i + 7) + i) % len(_WORDS)] for i in range(_STATE_WORDS)]
        state = f"Message {number}: {' '.join(words)}."
        yield json.dumps({"model": "jev-latest", "state": state, "questions": _QUESTIONS}).encode()


def measure(
    served: Sequence[Running], delay: float, connections: int, *, seconds: float, rounds: int
) -> list[Row]:
    """Load every stack in turn, `rounds` times."""
    supply = bodies()
    found: dict[str, list[tuple[Tally, float]]] = {one.stack.name: [] for one in served}
    for turn in range(rounds + 1):
        for one in served:
            before = one.cpu_seconds()
            for_seconds = seconds if turn else 1.0  # the first turn warms up
            tally = uvloop.run(load(one.port, supply, connections=connections, seconds=for_seconds))
            if turn:
                found[one.stack.name].append((tally, one.cpu_seconds() - before))
    return [_row(name, delay, connections, results) for name, results in found.items()]


def _row(name: str, delay: float, connections: int, results: Sequence[tuple[Tally, float]]) -> Row:
    def percentile(share: float) -> float:
        values = [
            sorted(tally.latencies)[int(share * (len(tally.latencies) - 1))]
            for tally, _ in results
            if tally.latencies
        ]
        return 1000 * statistics.median(values) if values else float("nan")

    return Row(
        stack=name,
        delay=delay,
        connections=connections,
        rate=statistics.median(len(t.latencies) / t.seconds for t, _ in results),
        p50=percentile(0.5),
        p95=percentile(0.95),
        p99=percentile(0.99),
        cpu=1000 * statistics.median(cpu / max(1, len(t.latencies)) for t, cpu in results),
        errors=sum(tally.errors for tally, _ in results),
    )


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.api",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--delays", type=float, nargs="+", default=[0.0, 0.015], metavar="S")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64], metavar="N")
    parser.add_argument("--seconds", type=float, default=5.0, help="per stack and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="stacks whose name holds one")
    parser.add_argument("--first-port", type=int, default=18100)
    parser.add_argument("--output", type=Path, help="write the rows as JSON")
    parser.add_argument("--picture", type=Path, help="draw them, as SVG or PNG")
    return parser


def _chosen(only: Sequence[str] | None) -> tuple[Stack, ...]:
    chosen = tuple(s for s in STACKS if not only or any(text in s.name for text in only))
    if not chosen:
        raise SystemExit(f"No stack is named so. There are: {', '.join(s.name for s in STACKS)}.")
    return chosen


def main() -> None:
    """Measure, print, write."""
    options = _parser().parse_args()
    cores = sorted(os.sched_getaffinity(0))
    server_core, load_core = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
    if load_core is not None:
        os.sched_setaffinity(0, {load_core})
    model = PROFILES[PROFILE].served_model_name
    port = options.first_port
    rows: list[Row] = []
    for delay in options.delays:
        with (
            stub(port, model, delay, load_core) as engine,
            running(_chosen(options.only), engine, port + 1, server_core) as served,
        ):
            for connections in options.connections:
                rows += measure(
                    served, delay, connections, seconds=options.seconds, rounds=options.rounds
                )
                print(table(rows[-len(served) :]), flush=True)
    if options.output:
        options.output.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    if options.picture:
        from benchmarks.api.picture import draw

        draw(rows, options.picture)


if __name__ == "__main__":
    main()
