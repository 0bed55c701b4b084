"""What the API tier costs, beside what one would write instead, and beside the least possible.

    python -m benchmarks.api [--delays 0 0.015] [--connections 1 16 64] [--seconds 2] [--rounds 12]

All stacks run at the same time in front of one stub engine, on one core, and are loaded in turns
(one connection count, every stack, again and again; many short turns, because a shared machine is
faster in one minute than in the next), so that whatever else the machine does meets all of them.
Each request has a state of its own of about 300 tokens and the same four questions: five engine
calls. Prints, and writes with `--output`, requests per second and latency as medians over the
rounds, CPU time as their lower quartile (whatever else runs on a shared machine only adds to it),
and each as a ratio to the first stack; `--picture` draws them. Ends with exit code 1 if
OpenJev misses a goal.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import uvloop

from benchmarks.api.bodies import evaluations
from benchmarks.api.goals import settle
from benchmarks.api.load import Tally, load
from benchmarks.api.rows import Row, goals, table
from benchmarks.api.servers import MODEL, Running, chosen, own_cores, running, stub


def measure(
    served: Sequence[Running], delay: float, connections: int, *, seconds: float, rounds: int
) -> list[Row]:
    """Load every stack in turn, `rounds` times."""
    supply = evaluations()
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
    spent = [cpu / max(1, len(tally.latencies)) for tally, cpu in results]

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
        cpu=1000 * sorted(spent)[len(spent) // 4],  # neighbours only add to it
        errors=sum(tally.errors for tally, _ in results),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.api",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--delays", type=float, nargs="+", default=[0.0, 0.015], metavar="S")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64], metavar="N")
    parser.add_argument("--seconds", type=float, default=2.0, help="per stack and round")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="stacks whose name holds one")
    parser.add_argument("--first-port", type=int, default=18100)
    parser.add_argument("--output", type=Path, help="write the rows as JSON")
    parser.add_argument("--picture", type=Path, help="draw them, as SVG or PNG")
    return parser


def main() -> None:
    """Measure, print, write."""
    options = _parser().parse_args()
    server_core, load_core = own_cores()
    port = options.first_port
    rows: list[Row] = []
    for delay in options.delays:
        with (
            stub(port, MODEL, delay, load_core) as engine,
            running(chosen(options.only), engine, port + 1, server_core) as served,
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
    settle(goals(rows))


if __name__ == "__main__":
    main()
