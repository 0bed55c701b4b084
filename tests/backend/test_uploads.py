"""How much of a body Daphne keeps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import free_port

pytestmark = pytest.mark.process

# Serves an application that says how long the body was, and asks it, all in one process.
_PROGRAM = """
import asyncio, json, sys
import backend.uploads
from backend.api_server import ApiServer
import aiohttp

backend.uploads.ABORT_BYTES = 3_000_000

async def application(scope, receive, send):
    length, more = 0, True
    while more:
        event = await receive()
        length += len(event["body"])
        more = event["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(length).encode()})

async def ask(session, size, chunked):
    async def chunks():
        for start in range(0, size, 50_000):
            yield bytes(min(50_000, size - start))

    try:
        body = chunks() if chunked else bytes(size)
        async with session.post(f"http://127.0.0.1:{port}/", data=body) as response:
            return int(await response.read()) if response.status == 200 else "refused"
    except aiohttp.ClientError:  # the refusal went by unseen, for the sake of what was still sent
        return "refused"

async def main():
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(20)) as session:
        kept = [[await ask(session, size, chunked) for chunked in (False, True)] for size in sizes]
    print(json.dumps(kept))
    return 0

port, sizes = int(sys.argv[1]), json.loads(sys.argv[2])
limits = {"http_timeout": 20, "max_body_bytes": 200_000}
server = ApiServer(application, host="127.0.0.1", port=port, **limits)
sys.exit(server.run(main))
"""


def test_one_byte_too_many_is_all_that_is_kept() -> None:
    sizes = [0, 1000, 200_000, 200_001, 2_000_000, 9_000_000]
    finished = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(free_port()), json.dumps(sizes)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    kept = [0, 1000, 200_000, 200_001, 200_001, "refused"]
    assert json.loads(finished.stdout) == [[length, length] for length in kept]
