"""How the API tier's CPU time grows with the questions and with the state of an evaluation.

    python -m benchmarks.api.growth [--seconds 1.5] [--rounds 6] [--only uvicorn]

A stub engine that answers at once stands behind OpenJev, so all that is measured is OpenJev's.
Every request has a state of its own. The number of questions grows over a short state, the state
over four questions. Prints the CPU time of the server per evaluation, the least of the rounds, a
straight line fitted to it, and how much dearer one more question or token is in the upper half of
the range than in the lower: hardly, which is what "linear, not worse" means.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import uvloop

from benchmarks.api.bodies import evaluations, many_questions
from benchmarks.api.curves import Curve
from benchmarks.api.goals import settle
from benchmarks.api.load import load
from benchmarks.api.servers import MODEL, Running, chosen, own_cores, running, stub

QUESTIONS = (1, 2, 4, 8, 16, 32, 48, 64)
TOKENS = (100, 500, 1000, 2000, 4000, 8000, 12_000, 16_000)
_CONNECTIONS = 4


def measure(served: Sequence[Running], *, seconds: float, rounds: int) -> list[Curve]:
    """Load every stack with every size in turn, `rounds` times."""
    supplies = {("questions", size): evaluations(many_questions(size)) for size in QUESTIONS} | {
        ("tokens", size): evaluations(words=size) for size in TOKENS
    }
    least: dict[tuple[str, str], dict[int, float]] = {
        (one.stack.name, grows): {} for one in served for grows, _ in supplies
    }
    for turn in range(rounds + 1):
        for (grows, size), supply in supplies.items():
            for one in served:
                before = one.cpu_seconds()
                # the first turn warms up
                work = load(
                    one.port, supply, connections=_CONNECTIONS, seconds=seconds if turn else 0.3
                )
                tally = uvloop.run(work)
                if tally.errors:
                    raise SystemExit(f"{one.stack.name} failed with {size} {grows}.")
                spent = 1000 * (one.cpu_seconds() - before) / len(tally.latencies)
                if turn:
                    points = least[one.stack.name, grows]
                    points[size] = min(points.get(size, spent), spent)
    return [Curve(stack, grows, points) for (stack, grows), points in least.items()]


def main() -> None:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.api.growth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=1.5, help="per size, stack and round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", nargs="+", default=["OpenJev"], metavar="TEXT")
    parser.add_argument("--first-port", type=int, default=18130)
    parser.add_argument("--output", type=Path, help="write the curves as JSON")
    parser.add_argument("--picture", type=Path, help="draw them, as SVG or PNG")
    options = parser.parse_args()
    server_core, load_core = own_cores()
    with (
        stub(options.first_port, MODEL, 0.0, load_core) as engine,
        running(chosen(options.only), engine, options.first_port + 1, server_core) as served,
    ):
        curves = measure(served, seconds=options.seconds, rounds=options.rounds)
    print("\n".join(map(str, curves)), flush=True)
    if options.output:
        options.output.write_text(json.dumps([asdict(curve) for curve in curves], indent=2) + "\n")
    if options.picture:
        from benchmarks.api.picture import draw_growth

        draw_growth(curves, options.picture)
    settle([curve.goal() for curve in curves])


if __name__ == "__main__":
    main()
