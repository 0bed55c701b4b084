"""How many branches find their prefix behind a router, and how fast it is.

    python -m backend.embedded --gguf WEIGHTS --port 30001 --served-model-name m …   # and 30002 …
    python -m sglang_router.launch_router --worker-urls http://127.0.0.1:30001 … --policy manual …
    python -m benchmarks.router --url http://127.0.0.1:30000 [--evaluations 12 --branches 8]

All evaluations begin at once: a warm-up call on a prefix of its own, then its branches together;
random token ids, because the cache does not depend on what they mean. Any engine will do that
counts cached tokens. Prints how many branches found their whole prefix in the engine they reached
and the seconds from the first call to the last answer, and as much again with a routing key of its
own for every call, as if there were none.
"""

import argparse
import asyncio
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from backend.client import EngineClient
from backend.protocol import Call
from backend.token_ids import TokenIds

SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What is asked.

    Attributes:
        evaluations: at the same time.
        branches: of each.
        prefix: its tokens.
        suffix: tokens of each branch behind the prefix.
        vocabulary: token ids are below it.
    """

    evaluations: int
    branches: int
    prefix: int
    suffix: int
    vocabulary: int

    def tokens(self, count: int) -> list[int]:
        """Random token ids."""
        return random.choices(range(self.vocabulary), k=count)  # noqa: S311


async def run(client: EngineClient, shape: Shape, *, keyed: bool) -> tuple[int, float]:
    """Evaluate once with everything; give the branches that found their prefix, and the seconds."""
    begun = time.perf_counter()
    found = await asyncio.gather(
        *(_evaluate(client, shape, keyed=keyed) for _ in range(shape.evaluations))
    )
    return sum(found), time.perf_counter() - begun


async def _evaluate(client: EngineClient, shape: Shape, *, keyed: bool) -> int:
    name = uuid.uuid4().hex
    prefix = shape.tokens(shape.prefix)

    async def cached(number: int, ids: list[int]) -> int:
        (answer,) = await client.label_logprobs(
            [Call(TokenIds.of(ids), [0, 1], f"{name}.{number:04d}")],
            deadline=asyncio.get_running_loop().time() + SECONDS,
            routing_key=name if keyed else uuid.uuid4().hex,
        )
        return answer.cached_tokens or 0

    await cached(0, prefix)
    branches = [prefix + shape.tokens(shape.suffix) for _ in range(shape.branches)]
    counts = await asyncio.gather(*(cached(1 + n, ids) for n, ids in enumerate(branches)))
    return sum(count >= shape.prefix for count in counts)


async def measure(url: str, shape: Shape, rounds: int) -> None:
    """Measure with and without a common key, and print a line for each."""
    client = EngineClient(url, max_in_flight=shape.evaluations * shape.branches)
    try:
        for keyed in (True, False):
            results = [await run(client, shape, keyed=keyed) for _ in range(rounds)]
            found = sum(one for one, _ in results)
            total = rounds * shape.evaluations * shape.branches
            times = ", ".join(f"{seconds:.2f}" for _, seconds in results)
            print(f"{'one key' if keyed else 'no common key'}: {found}/{total}, {times} s")
    finally:
        await client.aclose()


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description="Measure prefix reuse behind a router.")
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="the router or an engine")
    for name, default, meaning in (
        ("evaluations", 12, "at the same time"),
        ("branches", 8, "of each evaluation"),
        ("prefix", 500, "tokens"),
        ("suffix", 40, "tokens of a branch behind the prefix"),
        ("vocabulary", 256, "token ids are below it; every model has that many"),
        ("rounds", 1, "of everything, each on new prefixes"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=meaning)
    options = vars(parser.parse_args(arguments))
    url, rounds = options.pop("url"), options.pop("rounds")
    asyncio.run(measure(url, Shape(**options), rounds))


if __name__ == "__main__":
    main()
