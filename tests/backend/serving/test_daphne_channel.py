"""What a client sees whose bytes do not become a request, on a socket of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.loopback import free_port
from tests.support.raw_http import BROKEN, GET, POST, error_in

pytestmark = pytest.mark.process

# Serves an application that answers everything, and speaks to it, all in one process.
_PROGRAM = """
import asyncio, json, sys
import backend.serving.daphne_channel
from backend.serving.daphne_server import DaphneServer
from backend.launch import open_listener

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

async def insist(first, more, pause):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(first.encode())
    answer = await asyncio.wait_for(reader.read(), 10)
    sent = 0
    while not writer.is_closing():
        writer.write(bytes(more))
        sent += more
        await asyncio.sleep(pause)
    return [answer.decode(), sent]

async def main():
    await server.start_accepting()
    asked = [globals()[name](*arguments) for name, arguments in asks]
    print(json.dumps(await asyncio.wait_for(asyncio.gather(*asked), 30)))
    return 0

port, limits, asks = int(sys.argv[1]), *map(json.loads, sys.argv[2:])
vars(backend.serving.daphne_channel).update(limits)
listener = open_listener("127.0.0.1", port, "--port")
server = DaphneServer(application, listener, http_timeout=20, max_body_bytes=1000)
sys.exit(server.run(main))
"""


def ask(*asks: tuple[str, Any], **limits: float) -> Any:
    """What each call of a function of the program returns, its channels having other limits."""
    finished = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(free_port()), json.dumps(limits), json.dumps(asks)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert b"Traceback" not in finished.stderr
    return json.loads(finished.stdout)


def answers_to(*spoken: list[tuple[str, float]]) -> list[str]:
    """What comes back to each client that says its pieces, pausing after each (seconds)."""
    answers: list[str] = ask(*[("say", [pieces]) for pieces in spoken], REQUEST_SECONDS=1)
    return answers


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


DECLARED = "Content-Length: 1001\r\n\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n\r\n"
WAIT = "Expect: 100-continue\r\n"


def assert_too_large(answer: str) -> None:
    error = error_in(answer, 413)
    assert error["type"] == "request_too_large"
    assert "1000 bytes" in error["message"]


def test_too_long_body_is_refused_before_its_end() -> None:
    chunk = "3e8\r\n" + "x" * 1000 + "\r\n"  # as much as fits
    bodies = [
        DECLARED,
        WAIT + DECLARED,
        CHUNKED + chunk + "1\r\nx",
        CHUNKED + "7d0\r\n" + "x" * 1001,
        WAIT + CHUNKED + chunk + chunk,
    ]
    *answers, invited = answers_to(*([(POST + body, 0.9)] for body in bodies))
    for answer in answers:
        assert_too_large(answer)
    assert_too_large(invited.removeprefix("HTTP/1.1 100 Continue\r\n\r\n"))


def test_too_long_body_that_has_come_at_once_is_refused_once() -> None:
    rest = GET + "\r\n"  # must not pass for a request
    chunks = "3e9\r\n" + "x" * 1001 + "\r\n0\r\n\r\n"
    bodies = [DECLARED + "x" * 1001, CHUNKED + chunks]
    for answer in answers_to(*([(POST + body + rest, 0.9)] for body in bodies)):
        assert_too_large(answer)


def test_too_long_body_on_a_connection_that_was_kept_ends_it() -> None:
    whole = GET + "\r\n"
    spoken = [[(whole, apart), (POST + DECLARED, 0.9)] for apart in (0.1, 0.0)]
    for answer in answers_to(*spoken):
        good, _, bad = answer.partition("\r\n\r\n/?")
        assert good.startswith("HTTP/1.1 200 OK")
        assert_too_large(bad)


def test_body_that_fits_is_asked_for() -> None:
    head = POST + WAIT + "Content-Length: 1000\r\n\r\n"
    (answer,) = answers_to([(head, 0.1), ("x" * 1000, 0.1), ("nonsense\r\n\r\n", 0.9)])
    first, second, _ = answer.split("\r\n\r\n", 2)
    assert first == "HTTP/1.1 100 Continue"
    assert second.startswith("HTTP/1.1 200 OK")


def test_refused_client_reads_the_answer_while_it_still_sends_for_a_while() -> None:
    refused = {413: POST + DECLARED, 400: "nonsense\r\n\r\n"}
    fast = [("insist", [first, 10_000, 0.001]) for first in refused.values()]
    slow = [("insist", [first, 1, 0.02]) for first in refused.values()]
    for asks, limits, least, most in (
        (fast, {"LINGER_BYTES": 500_000}, 500_000, 30_000_000),  # the kernel takes in some, too
        (slow, {"LINGER_SECONDS": 0.5}, 2, 100),
    ):
        answers = ask(*asks, **limits)
        for status, (answer, sent) in zip(refused, answers, strict=True):
            error_in(answer, status)
            assert least < sent < most


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
