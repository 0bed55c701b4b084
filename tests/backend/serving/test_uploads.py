"""How long a body may be, for a client that sends all of it before it looks for an answer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.loopback import free_port

pytestmark = pytest.mark.process

# Serves an application that says how long the body was, and asks it, all in one process.
_PROGRAM = """
import asyncio, json, sys
from backend.serving.daphne_server import DaphneServer
from backend.launch import open_listener
import aiohttp

async def application(scope, receive, send):
    length, more = 0, True
    while more:
        event = await receive()
        length += len(event["body"])
        more = event["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(length).encode()})

async def ask(session, size, chunked, expect):
    async def chunks():
        for start in range(0, size, 50_000):
            yield bytes(min(50_000, size - start))

    body = chunks() if chunked else bytes(size)
    url = f"http://127.0.0.1:{port}/"
    async with session.post(url, data=body, expect100=expect) as response:
        answer = await response.json(content_type=None)
        return answer if response.status == 200 else [response.status, answer["error"]["type"]]

async def main():
    await server.start_accepting()
    ways = [(False, False), (True, False), (False, True), (True, True)]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(20)) as session:
        answers = [[await ask(session, size, *way) for way in ways] for size in sizes]
    print(json.dumps(answers))
    return 0

port, sizes = int(sys.argv[1]), json.loads(sys.argv[2])
limits = {"http_timeout": 20, "max_body_bytes": 200_000}
listener = open_listener("127.0.0.1", port, "--port")
server = DaphneServer(application, listener, **limits)
sys.exit(server.run(main))
"""


def test_bodies_arrive_whole_up_to_the_limit_and_beyond_it_the_refusal_is_read() -> None:
    sizes = [0, 1000, 200_000, 200_001, 2_000_000, 9_000_000]
    finished = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(free_port()), json.dumps(sizes)],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    refused = [413, "request_too_large"]
    answers = [0, 1000, 200_000, refused, refused, refused]
    assert json.loads(finished.stdout) == [[answer] * 4 for answer in answers]
