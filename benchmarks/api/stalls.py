"""How long a request waits that asks for nothing, while very long states are evaluated.

    python -m benchmarks.api.stalls [--tokens 16000] [--connections 1 4] [--seconds 8] [--rounds 3]

`/health/live` is answered by the event loop alone, so how late it comes is how long the loop was
kept. It is asked again and again over a connection of its own, first while nothing else happens,
then while evaluations with states of that many tokens are posted, one after another. Prints the
latencies; the slowest answer beside one evaluation at a time, in the median round, has to come
within 50 ms.
"""

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import Iterator

import uvloop

from benchmarks.api.bodies import evaluations
from benchmarks.api.goals import Goal, settle
from benchmarks.api.load import connect, get_request, load
from benchmarks.api.servers import MODEL, chosen, own_cores, running, stub

_PAUSE = 0.003  # between an answer and the next question, in seconds
_LIMIT_MS = 50.0


async def latencies(
    port: int, bodies: Iterator[bytes], *, connections: int, seconds: float
) -> tuple[list[float], int]:
    """Ask `/health/live` while evaluations are posted.

    Args:
        port: of the server.
        bodies: to post.
        connections: evaluations at a time; 0 for none.
        seconds: how long.

    Returns:
        Milliseconds of each answer, and how many evaluations were answered meanwhile.
    """
    client = await connect(port)
    asked = get_request(port, "/health/live")
    waited: list[float] = []

    async def watch() -> None:
        while True:
            begun = time.perf_counter()
            if await client.post(asked) != 200:
                raise SystemExit("/health/live did not answer 200.")
            waited.append(1000 * (time.perf_counter() - begun))
            await asyncio.sleep(_PAUSE)

    watching = asyncio.create_task(watch())
    if connections:
        tally = await load(port, bodies, connections=connections, seconds=seconds)
        if tally.errors:
            raise SystemExit(f"{tally.errors} evaluations failed.")
        answered = len(tally.latencies)
    else:
        await asyncio.sleep(seconds)
        answered = 0
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    client.transport.close()
    return waited, answered


def main() -> None:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.api.stalls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tokens", type=int, default=16_000)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 4], metavar="N")
    parser.add_argument("--seconds", type=float, default=8.0, help="per stack, load and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=["OpenJev"], metavar="TEXT")
    parser.add_argument("--first-port", type=int, default=18140)
    options = parser.parse_args()
    server_core, load_core = own_cores()
    bodies = evaluations(words=options.tokens)
    slowest: dict[tuple[str, int], list[float]] = {}
    with (
        stub(options.first_port, MODEL, 0.0, load_core) as engine,
        running(chosen(options.only), engine, options.first_port + 1, server_core) as served,
    ):
        for turn in range(options.rounds + 1):
            for connections in (0, *options.connections):
                for one in served:
                    work = latencies(
                        one.port,
                        bodies,
                        connections=connections,
                        seconds=options.seconds if turn else 1.0,  # the first turn warms up
                    )
                    waited, answered = uvloop.run(work)
                    if not turn:
                        continue
                    slowest.setdefault((one.stack.name, connections), []).append(max(waited))
                    p99 = sorted(waited)[int(0.99 * (len(waited) - 1))]
                    print(
                        f"{one.stack.name}, {connections} at a time: {answered} evaluations, "
                        f"{len(waited)} looks, p50 {statistics.median(waited):.1f} ms, "
                        f"p99 {p99:.1f} ms, slowest {max(waited):.1f} ms",
                        flush=True,
                    )
    settle(
        [
            Goal(f"{stack}: slowest /health/live in ms", statistics.median(found), _LIMIT_MS)
            for (stack, connections), found in slowest.items()
            if connections == 1
        ]
    )


if __name__ == "__main__":
    main()
