"""What the calls of one evaluation cost in the client: aiohttp beside the product's own.

    python -m benchmarks.transport [--evaluations 400] [--concurrent 16] [--rounds 5]

Each evaluation is one call and then four at once, to a stub engine in a process of its own. aiohttp
only fetches the answers; the product's client checks what it sends and reads what comes, too. The
two take turns in one process; prints the CPU time of this process per evaluation, the least of all
rounds, in microseconds. Needs `requirements-bench.txt`.
"""

import argparse
import asyncio
import time
from typing import Protocol

import aiohttp
import uvloop

from backend.client import EngineClient
from backend.protocol import Call, generate_body
from backend.token_ids import TokenIds
from benchmarks.api.goals import Goal, settle
from benchmarks.api.servers import stub

_PORT = 18090
_KEY = "0" * 32
_WARM_UP, *_BRANCHES = (
    Call(TokenIds.of(range(340)), [1, 2, 3], f"{_KEY}.{number:04d}") for number in range(5)
)
_SECONDS = 60.0


class Client(Protocol):
    """Either of the two."""

    async def evaluate(self) -> None:
        """Make the calls of one evaluation."""

    async def aclose(self) -> None:
        """Close every connection."""


class Aiohttp:
    """aiohttp, without anything that it does not need here."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers={"Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def evaluate(self) -> None:
        """Make the calls of one evaluation."""
        async with asyncio.timeout(_SECONDS):
            await self._post(_WARM_UP)
            await asyncio.gather(*map(self._post, _BRANCHES))

    async def aclose(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def _post(self, call: Call) -> None:
        async with self._session.post(
            f"{self._url}/generate",
            data=generate_body(call),
            headers={"x-smg-routing-key": _KEY},
        ) as response:
            assert response.status == 200
            await response.read()


class Own(EngineClient):
    """The product's."""

    async def evaluate(self) -> None:
        """Make the calls of one evaluation."""
        deadline = asyncio.get_running_loop().time() + _SECONDS
        for calls in ([_WARM_UP], _BRANCHES):
            await self.label_logprobs(calls, deadline=deadline, routing_key=_KEY)


async def cpu_per_evaluation(client: Client, evaluations: int, concurrent: int) -> float:
    """Microseconds of this process, for each of `evaluations`, `concurrent` at a time."""
    left = iter(range(evaluations))

    async def work() -> None:
        for _ in left:
            await client.evaluate()

    begun = time.process_time()
    await asyncio.gather(*(work() for _ in range(concurrent)))
    return 1e6 * (time.process_time() - begun) / evaluations


async def compare(url: str, evaluations: int, concurrent: int, rounds: int) -> None:
    """Let both take turns, and print the least of each."""
    clients: dict[str, Client] = {"aiohttp": Aiohttp(url), "own": Own(url, max_in_flight=256)}
    least = dict.fromkeys(clients, float("inf"))
    for _ in range(rounds):
        for name, client in clients.items():
            spent = await cpu_per_evaluation(client, evaluations, concurrent)
            least[name] = min(least[name], spent)
    for client in clients.values():
        await client.aclose()
    for name, spent in least.items():
        print(f"{name:7} {spent:7.0f} µs of CPU per evaluation of 5 calls")
    ratio = least["aiohttp"] / least["own"]
    settle([Goal("CPU of aiohttp to that of the own client", ratio, 2.0, at_least=True)])


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.transport",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--evaluations", type=int, default=400)
    parser.add_argument("--concurrent", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with stub(_PORT, "stub", 0.0, None) as url:
        uvloop.run(compare(url, options.evaluations, options.concurrent, options.rounds))


if __name__ == "__main__":
    main()
