"""Whether anything grows over very many evaluations: memory, file descriptors, threads, tasks.

    python -m benchmarks.api.endurance [--requests 20000] [--connections 16]

Every evaluation has a state of its own, and beside the four questions of the other benchmarks one
that was never asked before, so that the cache of questions turns over all the time. A first tenth
on top of `--requests` fills caches and pools; what is then in use is the measure of what follows.
uvicorn serves the product with a look at its tasks beside it; Daphne is what `runbackend` starts.
Prints a line for each tenth; memory may change by 5 %, the rest must not grow.
"""

import argparse
import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

import httpx
import uvloop

from benchmarks.api.bodies import FOUR_QUESTIONS, evaluations
from benchmarks.api.goals import Goal, settle
from benchmarks.api.load import load
from benchmarks.api.servers import (
    DAPHNE,
    MODEL,
    STACKS,
    UVICORN,
    Running,
    own_cores,
    running,
    stub,
    uvicorn,
)

_TENTHS = 10
_GROWTH = 0.05
_CALLS = len(FOUR_QUESTIONS) + 1  # at the same time, the fresh question's included
_SETTLE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Use:
    """What a server holds while nothing is asked of it.

    Attributes:
        memory: resident, in MB.
        files: open file descriptors, without those in `kept`.
        kept: connections to the engine, which idle for the next call.
        threads: of the process.
        tasks: of the event loop; 0 where they cannot be seen.
    """

    memory: float
    files: int
    kept: int
    threads: int
    tasks: int


def use_of(one: Running, engine_port: int) -> Use:
    """Look at a server and its children."""
    family = [one.process, *one.process.children(recursive=True)]
    tasks = 0
    if one.stack.name == UVICORN:
        tasks = int(httpx.get(f"http://127.0.0.1:{one.port}/tasks", timeout=30).text)
    kept = sum(
        bool(connection.raddr) and connection.raddr.port == engine_port
        for process in family
        for connection in process.net_connections("tcp")
    )
    return Use(
        memory=sum(process.memory_info().rss for process in family) / 1e6,
        files=sum(process.num_fds() for process in family) - kept,
        kept=kept,
        threads=sum(process.num_threads() for process in family),
        tasks=tasks,
    )


async def post(port: int, bodies: Iterator[bytes], *, requests: int, connections: int) -> None:
    """Post so many evaluations, and give connections and tasks a moment to end."""
    left = iter(range(requests))
    supply = (next(bodies) for _ in left)
    tally = await load(port, supply, connections=connections, seconds=float("inf"))
    if tally.errors:
        raise SystemExit(f"{tally.errors} of {requests} evaluations failed.")
    await asyncio.sleep(_SETTLE_SECONDS)


def endure(one: Running, engine_port: int, requests: int, connections: int) -> list[Goal]:
    """Put one server through it, and judge."""
    bodies = evaluations(fresh=True)
    share = requests // _TENTHS
    uses: list[Use] = []
    for tenth in range(_TENTHS + 1):
        uvloop.run(post(one.port, bodies, requests=share, connections=connections))
        uses.append(use_of(one, engine_port))
        print(f"{one.stack.name}, after {share * (tenth + 1)} evaluations: {uses[-1]}", flush=True)
    first, *later = uses
    name = one.stack.name
    change = max(abs(use.memory / first.memory - 1) for use in later)
    goals = [Goal(f"{name}: largest change of memory, as a share", change, _GROWTH)]
    for what in ("files", "threads", "tasks"):
        grown = getattr(later[-1], what) - getattr(first, what)
        goals.append(Goal(f"{name}: {what} more than at first", grown, 0))
    kept = max(use.kept for use in uses)
    return [*goals, Goal(f"{name}: connections to the engine", kept, connections * _CALLS)]


def main() -> None:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.api.endurance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--only", choices=[UVICORN, DAPHNE], help="default: both")
    parser.add_argument("--first-port", type=int, default=18150)
    options = parser.parse_args()
    server_core, load_core = own_cores()
    ours = {stack.name: stack for stack in STACKS if stack.name in {UVICORN, DAPHNE}}
    watched = uvicorn("benchmarks.api.watched:application")
    ours[UVICORN] = replace(ours[UVICORN], command=watched)
    stacks = tuple(stack for name, stack in ours.items() if options.only in {None, name})
    with (
        stub(options.first_port, MODEL, 0.0, load_core) as engine,
        running(stacks, engine, options.first_port + 1, server_core) as served,
    ):
        goals = [
            goal
            for one in served
            for goal in endure(one, options.first_port, options.requests, options.connections)
        ]
    settle(goals)


if __name__ == "__main__":
    main()
