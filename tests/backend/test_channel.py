"""What a client sees whose bytes do not become a request, on a socket of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import free_port

pytestmark = pytest.mark.process

# Serves an application that answers everything, and speaks to it, all in one process.
_PROGRAM = """
import asyncio, json, sys
import backend.channel, backend.uploads
from backend.api_server import ApiServer

backend.channel.REQUEST_SECONDS = 1.0
backend.uploads.ABORT_BYTES = 10_000

async def application(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    said = scope["path"].encode() + b"?" + scope["query_string"]
    headers = [(b"content-length", b"%d" % len(said))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": said})

async def say(pieces):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(reader.read())
    for piece, pause in pieces:
        if answer.done():
            break
        writer.write(piece.encode("latin-1"))
        await asyncio.wait([answer], timeout=pause)
    writer.close()
    return (await asyncio.wait_for(answer, 10)).decode()

async def main():
    answers = await asyncio.gather(*map(say, spoken))
    print(json.dumps(answers))
    return 0

port, spoken = int(sys.argv[1]), json.loads(sys.argv[2])
server = ApiServer(
    application, host="127.0.0.1", port=port, http_timeout=20, max_body_bytes=1000
)
sys.exit(server.run(main))
"""

GET = "GET / HTTP/1.1\r\nHost: a\r\n"
POST = "POST / HTTP/1.1\r\nHost: a\r\n"


def answers_to(*spoken: list[tuple[str, float]]) -> list[str]:
    """What comes back to each client that says its pieces, pausing after each (seconds)."""
    finished = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(free_port()), json.dumps(spoken)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert b"Traceback" not in finished.stderr
    answers: list[str] = json.loads(finished.stdout)
    return answers


def error_in(answer: str, status: int) -> Any:
    """The body of an answer that must be an error with one id and an end."""
    head, body = answer.split("\r\n\r\n")
    first, *lines = head.split("\r\n")
    headers = dict(line.lower().split(": ") for line in lines)
    assert first.startswith(f"HTTP/1.1 {status} ")
    assert headers["connection"] == "close"
    assert headers["content-type"] == "application/json"
    assert headers["content-length"] == str(len(body))
    assert headers["x-typesafe-request-id"] == headers["x-request-id"]
    assert headers["x-request-id"].startswith("req_")
    error = json.loads(body)
    assert error["error"]["message"] == error["detail"]["message"]
    return error["error"]


BROKEN = [
    "\r\n\r\n",
    "nonsense\r\n\r\n",
    GET + "no colon\r\n\r\n",
    GET + ": no name\r\n\r\n",
    GET + "X: \x00\r\n\r\n",
    GET + "X: y\r\n" * 600 + "\r\n",
    POST + "Content-Length: -1\r\n\r\n",
    POST + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    POST + "Content-Length: " + "9" * 5000 + "\r\n\r\n",
    POST + "Transfer-Encoding: gzip\r\n\r\n",
    POST + "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    GET + "X: " + "y" * 70_000 + "\r\n\r\n",
]


def test_broken_requests_are_refused_like_any_other() -> None:
    for answer in answers_to(*([(broken, 5.0)] for broken in BROKEN)):
        error = error_in(answer, 400)
        assert error["type"] == "api_usage_error"
        assert error["message"].startswith("The request is malformed: ")
        assert error["message"].endswith(".")


def test_what_breaks_after_a_good_request_does_not_harm_its_answer() -> None:
    (answer,) = answers_to([(GET + "\r\nnonsense\r\n\r\n", 5.0)])
    good, _, bad = answer.partition("\r\n\r\n/?")
    assert good.startswith("HTTP/1.1 200 OK")
    error_in(bad, 400)


def test_requests_that_trickle_in_are_given_up() -> None:
    trickle = [("x", 0.1)] * 100
    starts = ["", "GET / HT", GET, GET + "X: ", POST + "Content-Length: 900\r\n\r\n"]
    for answer in answers_to(*([(start, 0.1), *trickle] for start in starts)):
        error = error_in(answer, 408)
        assert "1 seconds" in error["message"]


def test_time_between_requests_does_not_count() -> None:
    whole = GET + "\r\n"
    (answer,) = answers_to([(whole, 0.7), (whole, 0.7), (whole, 0.7), ("nonsense\r\n\r\n", 5.0)])
    assert answer.count("HTTP/1.1 200 OK") == 3


def test_far_too_long_bodies_are_refused_before_their_end() -> None:
    for head in ("Content-Length: 9000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n800000\r\n"):
        (answer,) = answers_to([(POST + head, 0.1), ("x" * 9000, 0.1), ("x" * 9000, 5.0)])
        error = error_in(answer, 413)
        assert error["type"] == "request_too_large"
        assert "1000 bytes" in error["message"]


def test_addresses_as_proxies_are_sent_them_are_ours() -> None:
    addresses = {
        "http://elsewhere:80/a/b?c=d": "/a/b?c=d",
        "HTTPS://user@[::1]/": "/?",
        "http://elsewhere": "/?",
        "http://elsewhere?c": "/?c",
        "/http://x/?http://y/z": "/http://x/?http://y/z",
    }
    spoken = [[(f"GET {address} HTTP/1.0\r\n\r\n", 5.0)] for address in addresses]
    assert [answer.split("\r\n\r\n")[1] for answer in answers_to(*spoken)] == list(
        addresses.values()
    )


def test_wish_for_another_protocol_is_answered_in_this_one() -> None:
    wish = (
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    (answer,) = answers_to([(GET + wish, 0.5), ("nonsense\r\n\r\n", 5.0)])
    assert answer.startswith("HTTP/1.1 200 OK")
