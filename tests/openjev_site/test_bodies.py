"""What becomes of a request body before Django sees it."""

import asyncio
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openjev_site import bodies
from openjev_site.bodies import Bodies
from openjev_site.decoding import zstd
from tests.openjev_site.exchange import (
    DISCONNECT,
    Echo,
    Reply,
    body_events,
    exchange,
    http_scope,
)
from tests.support.bombs import gzip_bomb, zstd_bomb

LIMIT = 1000
TEXT = b'{"state": "hello"}'


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def app(echo: Echo) -> Bodies:
    return Bodies(echo, max_bytes=LIMIT)


def assert_refused(reply: Reply, status: int, error_type: str, *words: str) -> None:
    assert reply.status == status
    assert reply.complete
    assert reply.headers["content-type"] == "application/json"
    assert int(reply.headers["content-length"]) == len(reply.body)
    body = reply.json
    assert body["error"]["type"] == body["detail"]["error_type"] == error_type
    assert body["error"]["message"] == body["detail"]["message"]
    for word in words:
        assert word in body["error"]["message"]


async def test_a_plain_body_passes_unchanged(app: Bodies, echo: Echo) -> None:
    headers = [("Content-Length", str(len(TEXT))), ("Content-Type", "application/json")]
    reply = await exchange(app, headers=headers, chunks=[TEXT])
    assert reply.status == 200
    assert echo.body == TEXT
    assert echo.headers == {
        "content-length": str(len(TEXT)),
        "content-type": "application/json",
    }


async def test_a_chunked_body_gets_its_length(app: Bodies, echo: Echo) -> None:
    reply = await exchange(
        app, headers=[("Transfer-Encoding", "chunked")], chunks=[TEXT[:5], b"", TEXT[5:], b""]
    )
    assert reply.status == 200
    assert echo.body == TEXT
    assert echo.headers == {"content-length": str(len(TEXT))}


@pytest.mark.parametrize("coding", ["zstd", "ZSTD", " gzip ", "x-gzip", "identity, gzip"])
async def test_coded_bodies_are_decoded(app: Bodies, echo: Echo, coding: str) -> None:
    coded = zstd.compress(TEXT) if "zstd" in coding.lower() else gzip.compress(TEXT)
    headers = [("Content-Encoding", coding), ("Content-Length", str(len(coded)))]
    reply = await exchange(app, headers=headers, chunks=[coded[:7], coded[7:]])
    assert reply.status == 200
    assert echo.body == TEXT
    assert echo.headers == {"content-length": str(len(TEXT))}


@pytest.mark.parametrize("coding", ["", "identity", "Identity, identity"])
async def test_no_coding_at_all(app: Bodies, echo: Echo, coding: str) -> None:
    reply = await exchange(app, headers=[("Content-Encoding", coding)], chunks=[TEXT])
    assert reply.status == 200
    assert echo.body == TEXT


@pytest.mark.parametrize(
    "coding", ["br", "deflate", "compress", "gzip, zstd", "gzip, gzip", "\xe9"]
)
async def test_unknown_and_stacked_codings_are_415(app: Bodies, echo: Echo, coding: str) -> None:
    reply = await exchange(app, headers=[("Content-Encoding", coding)], chunks=[TEXT])
    assert_refused(reply, 415, "api_usage_error", "zstd", "gzip")
    assert reply.headers["accept-encoding"] == "zstd, gzip"
    assert echo.body is None


async def test_two_content_encoding_headers_are_stacked(app: Bodies) -> None:
    headers = [("Content-Encoding", "gzip"), ("Content-Encoding", "zstd")]
    assert (await exchange(app, headers=headers, chunks=[TEXT])).status == 415


@pytest.mark.parametrize("coding", ["zstd", "gzip"])
@pytest.mark.parametrize("kind", ["garbage", "truncated", "trailing"])
async def test_corrupt_bodies_are_400(app: Bodies, echo: Echo, coding: str, kind: str) -> None:
    whole = zstd.compress(TEXT) if coding == "zstd" else gzip.compress(TEXT)
    coded = {"garbage": TEXT, "truncated": whole[:-3], "trailing": whole + TEXT}[kind]
    reply = await exchange(app, headers=[("Content-Encoding", coding)], chunks=[coded])
    assert_refused(reply, 400, "api_usage_error", coding)
    assert echo.body is None


async def test_the_limit_itself_is_allowed(app: Bodies, echo: Echo) -> None:
    full = b"x" * LIMIT
    assert (await exchange(app, chunks=[full])).status == 200
    coded = [("Content-Encoding", "zstd")]
    assert (await exchange(app, headers=coded, chunks=[zstd.compress(full)])).status == 200
    assert echo.body == full


async def test_a_declared_length_over_the_limit_is_413_and_nobody_asks_for_the_body(
    app: Bodies,
) -> None:
    reply = Reply()

    async def receive() -> Any:
        raise AssertionError

    async def send(event: Any) -> None:
        reply.events.append(event)

    headers = [("Content-Length", str(LIMIT + 1)), ("Expect", "100-continue")]
    await app(http_scope(headers=headers), receive, send)
    assert_refused(reply, 413, "request_too_large", str(LIMIT))
    assert reply.headers["connection"] == "close"


@pytest.mark.parametrize("length", ["-1", "abc", "", "1e9"])
async def test_a_meaningless_length_is_not_believed(app: Bodies, echo: Echo, length: str) -> None:
    assert (await exchange(app, headers=[("Content-Length", length)], chunks=[TEXT])).status == 200
    assert echo.headers["content-length"] == str(len(TEXT))


@pytest.mark.parametrize("headers", [[], [("Expect", "100-continue")]])
async def test_counted_bytes_are_refused_as_soon_as_they_pass_the_limit(
    app: Bodies, echo: Echo, monkeypatch: pytest.MonkeyPatch, headers: list[tuple[str, str]]
) -> None:
    monkeypatch.setattr(bodies, "_LINGER_BYTES", 10 * LIMIT)
    replied_after: list[int] = []
    received = 0

    async def receive() -> dict[str, Any]:
        nonlocal received
        received += 100
        assert received < 20 * LIMIT, "the rest is read without end"
        return {"type": "http.request", "body": b"x" * 100, "more_body": True}

    reply = Reply()

    async def send(event: dict[str, Any]) -> None:
        replied_after.append(received)
        reply.events.append(event)

    await app(http_scope(headers=headers), receive, send)
    assert_refused(reply, 413, "request_too_large", str(LIMIT))
    # the whole answer is out at the first byte too many; what follows is only taken in
    assert replied_after[:2] == [LIMIT + 100, LIMIT + 100]
    assert received == 11 * LIMIT + 100
    assert echo.body is None


@pytest.mark.parametrize("coding", ["zstd", "gzip"])
async def test_decoded_bytes_count(app: Bodies, echo: Echo, coding: str) -> None:
    body = b"x" * (LIMIT + 1)
    coded = zstd.compress(body) if coding == "zstd" else gzip.compress(body)
    assert len(coded) < 100
    reply = await exchange(app, headers=[("Content-Encoding", coding)], chunks=[coded])
    assert_refused(reply, 413, "request_too_large", str(LIMIT))
    assert echo.body is None


async def test_coded_bytes_count_too(app: Bodies) -> None:
    frames = zstd.compress(b"") * LIMIT  # decodes to nothing at all
    reply = await exchange(app, headers=[("Content-Encoding", "zstd")], chunks=[frames])
    assert_refused(reply, 413, "request_too_large")


async def test_a_bomb_is_refused_while_it_is_still_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_DECODE_BYTES", 512)
    monkeypatch.setattr(bodies, "_LINGER_SECONDS", 0.01)
    app = Bodies(Echo(), max_bytes=2**20)
    coded = zstd.compress(bytes(64 * 2**20))
    events = body_events([coded[:1024], coded[1024:]])[:1]  # the second half never comes
    reply = await exchange(app, headers=[("Content-Encoding", "zstd")], events=events)
    assert_refused(reply, 413, "request_too_large")


# Runs in a process of its own, whose highest memory use is nobody else's.
_MEASURE = """
import asyncio, sys
from openjev_site.bodies import Bodies
from tests.openjev_site.exchange import Echo, exchange
from tests.support.bombs import forget_peak, peak_kib

async def measure(coding, warm, bomb):
    app = Bodies(Echo(), max_bytes=2 * 2**20)
    headers = [("Content-Encoding", coding)]
    assert (await exchange(app, headers=headers, chunks=[warm])).status == 200
    before = forget_peak()
    status = (await exchange(app, headers=headers, chunks=[bomb])).status
    print(status, peak_kib() - before)

coding, warm, bomb = sys.argv[1:]
asyncio.run(measure(coding, open(warm, "rb").read(), open(bomb, "rb").read()))
"""


@pytest.mark.parametrize("coding", ["zstd", "gzip"])
def test_a_bomb_of_over_1_gb_is_413_and_costs_less_than_8_mb(coding: str, tmp_path: Path) -> None:
    warm, bomb = tmp_path / "warm", tmp_path / "bomb"
    warm.write_bytes(zstd.compress(TEXT) if coding == "zstd" else gzip.compress(TEXT))
    bomb.write_bytes(zstd_bomb() if coding == "zstd" else gzip_bomb())
    assert coding == "gzip" or bomb.stat().st_size < 100 * 1024
    measured = subprocess.run(
        [sys.executable, "-c", _MEASURE, coding, str(warm), str(bomb)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "openjev_site.settings"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    status, grown_kib = map(int, measured.stdout.split())
    assert status == 413
    assert grown_kib < 8 * 1024


async def test_get_and_head_bodies_are_dropped(app: Bodies, echo: Echo) -> None:
    for method in ("GET", "HEAD"):
        reply = await exchange(
            app, method, headers=[("Content-Encoding", "br")], chunks=[b"x" * LIMIT, b"x" * LIMIT]
        )
        assert reply.status == 200
        assert echo.body == b""


async def test_after_the_body_only_the_disconnect_is_passed_on() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend([(await receive())["type"], (await receive())["type"]])

    for method in ("POST", "GET"):
        seen.clear()
        events = [*body_events([b"{}"]), DISCONNECT]
        await exchange(Bodies(app, max_bytes=LIMIT), method, events=events)
        assert seen == ["http.request", "http.disconnect"]


async def test_a_client_that_leaves_during_its_body_gets_no_answer(app: Bodies, echo: Echo) -> None:
    events = [*body_events([b"{", b"}"])[:1], DISCONNECT]
    for headers in ([], [("Content-Encoding", "zstd")]):
        reply = await exchange(app, headers=headers, events=events)
        assert reply.events == []
        assert echo.body is None


async def test_a_refused_client_that_leaves_ends_the_lingering(app: Bodies) -> None:
    headers = [("Content-Length", str(LIMIT + 1))]
    async with asyncio.timeout(1):
        reply = await exchange(app, headers=headers, events=[DISCONNECT])
    assert reply.status == 413


async def test_big_decoding_leaves_the_loop_free(echo: Echo) -> None:
    app = Bodies(echo, max_bytes=64 * 2**20)
    body = json.dumps({"state": "free " * 2_000_000}).encode()
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.001)
            beats += 1

    heart = asyncio.create_task(beat())
    coded = zstd.compress(body)
    await exchange(app, headers=[("Content-Encoding", "zstd")], chunks=[coded])
    heart.cancel()
    assert echo.body == body
    assert beats > 0


async def test_other_protocols_pass(echo: Echo) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    await Bodies(app, max_bytes=LIMIT)({"type": "lifespan"}, None, None)  # type: ignore
    assert seen == ["lifespan"]
