"""Connections to an engine, byte by byte: what is kept, what is repeated, what is believed."""

import asyncio
import contextlib

import pytest

from backend.errors import EngineProtocolError, EngineTimeout, EngineUnavailable
from backend.transport import ConnectionPool

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Peer:
    """A server that answers every request with the next of its scripted bytes.

    `None` closes the connection instead; after the script it answers `OK`.
    """

    def __init__(self):
        self.script: list[bytes | None] = []
        self.requests: list[bytes] = []
        self.connections = 0
        self.open = 0
        self.changed = asyncio.Condition()
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader, writer):
        self.connections += 1
        self.open += 1
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = [line for line in head.split(b"\r\n") if b"ontent-Length" in line]
                body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
                self.requests.append(head + body)
                async with self.changed:
                    self.changed.notify_all()
                answer = self.script.pop(0) if self.script else OK
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        writer.close()
        async with self.changed:
            self.open -= 1
            self.changed.notify_all()

    async def until_asked(self, times):
        async with asyncio.timeout(5), self.changed:
            await self.changed.wait_for(lambda: len(self.requests) == times)

    async def until_open(self, count):
        async with asyncio.timeout(5), self.changed:
            await self.changed.wait_for(lambda: self.open == count)


@pytest.fixture
async def peer():
    return Peer()


@pytest.fixture
async def pool(peer):
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = ConnectionPool(f"http://127.0.0.1:{port}/engine/", api_key="secret")
    yield pool
    await pool.aclose()
    server.close()
    await peer.until_open(0)


def soon(seconds=5.0):
    return asyncio.get_running_loop().time() + seconds


async def test_a_request_is_what_http_says(pool, peer):
    status, body = await pool.post("/generate", b"[1]", deadline=soon(), headers={"x-key": "é1"})
    assert (status, body) == (200, b"{}")
    head, _, sent = peer.requests[0].partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    assert first == "POST /engine/generate HTTP/1.1"
    headers = dict(line.split(": ", 1) for line in lines)
    assert headers["Authorization"] == "Bearer secret"
    assert headers["Content-Type"] == "application/json"
    assert headers["Content-Length"] == "3"
    assert headers["x-key"] == "é1"
    assert headers["Host"].startswith("127.0.0.1:")
    assert sent == b"[1]"


async def test_a_connection_is_used_again(pool, peer):
    for _ in range(3):
        assert await pool.get("/health", deadline=soon()) == (200, b"{}")
    assert peer.connections == 1


async def test_calls_at_the_same_time_have_connections_of_their_own(pool, peer):
    answers = await asyncio.gather(*(pool.get("/x", deadline=soon()) for _ in range(5)))
    assert answers == [(200, b"{}")] * 5
    assert peer.connections == 5


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
            b"abc",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"{}"),
        (b"HTTP/1.1 503 No\r\ncontent-length: 4\r\n\r\nfull", b"full"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
    ],
    ids=["chunked", "after 100", "an error", "empty"],
)
async def test_answers_of_every_form(pool, peer, raw, expected):
    peer.script = [raw]
    _, body = await pool.get("/x", deadline=soon())
    assert body == expected
    assert await pool.get("/x", deadline=soon()) == (200, b"{}")
    assert peer.connections == 1


@pytest.mark.parametrize(
    "raw",
    [
        OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"),
        OK.replace(b"HTTP/1.1", b"HTTP/1.0"),
        OK + b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n!",
        OK + b"?",
    ],
    ids=["close", "HTTP/1.0", "a second answer", "a stray byte"],
)
async def test_a_connection_that_may_be_spoilt_is_not_used_again(pool, peer, raw):
    peer.script = [raw]
    # nothing else: what follows a whole answer is not part of it
    with contextlib.suppress(EngineProtocolError):
        assert await pool.get("/x", deadline=soon()) == (200, b"{}")
    assert await pool.get("/x", deadline=soon()) == (200, b"{}")
    assert peer.connections == 2


async def test_bytes_that_nobody_asked_for_end_an_idle_connection(pool, peer):
    await pool.get("/x", deadline=soon())
    peer.writers[0].write(OK)
    await peer.until_open(0)
    assert await pool.get("/x", deadline=soon()) == (200, b"{}")
    assert peer.connections == 2


async def test_a_connection_closed_while_idle_costs_one_more_try(pool, peer):
    await pool.get("/x", deadline=soon())
    peer.script = [None]
    assert await pool.get("/x", deadline=soon()) == (200, b"{}")
    assert peer.connections == 2
    assert len(peer.requests) == 3


async def test_a_fresh_connection_that_ends_is_not_tried_again(pool, peer):
    peer.script = [None]
    with pytest.raises(EngineUnavailable, match="without an answer"):
        await pool.get("/x", deadline=soon())
    assert len(peer.requests) == 1


async def test_the_second_try_is_the_last(pool, peer):
    await pool.get("/x", deadline=soon())
    peer.script = [None, None]
    with pytest.raises(EngineUnavailable):
        await pool.get("/x", deadline=soon())
    assert len(peer.requests) == 3


async def test_a_fresh_connection_that_ends_before_its_request_is_not_tried_again(
    pool, peer, monkeypatch
):
    """One that was never used cannot have been closed while it idled."""
    connect = pool.connect

    async def connect_too_late(deadline):
        connection = await connect(deadline)
        connection.close()
        await connection.lost
        return connection

    monkeypatch.setattr(pool, "connect", connect_too_late)
    with pytest.raises(EngineUnavailable, match="without an answer"):
        await pool.get("/x", deadline=soon(0.5))
    await peer.until_open(0)
    assert peer.connections == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    ],
    ids=["another protocol", "no length", "a change of protocol"],
)
async def test_what_is_not_http_is_no_answer(pool, peer, raw, caplog):
    peer.script = [raw]
    with pytest.raises(EngineProtocolError):
        await pool.get("/x", deadline=soon())
    assert not caplog.records  # nothing that only asyncio noticed
    assert await pool.get("/x", deadline=soon()) == (200, b"{}")


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK\r\nconnection: close"])
async def test_an_answer_that_only_the_end_of_its_connection_ends_is_not_known_to_be_whole(
    pool, peer, head
):
    peer.script = [head + b"\r\n\r\n{}"]
    call = asyncio.create_task(pool.get("/x", deadline=soon()))
    await peer.until_asked(1)
    peer.writers[0].close()
    with pytest.raises(EngineProtocolError, match="broke off"):
        await call
    assert len(peer.requests) == 1


async def test_an_answer_begun_on_a_kept_connection_is_not_asked_for_again(pool, peer):
    await pool.get("/x", deadline=soon())
    peer.script = [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"]
    call = asyncio.create_task(pool.get("/x", deadline=soon()))
    await peer.until_asked(2)
    peer.writers[0].close()
    with pytest.raises(EngineProtocolError):
        await call
    assert len(peer.requests) == 2


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n" + b"x" * 5_000_000,
        b"HTTP/1.1 200 OK\r\nx-header: " + b"x" * 5_000_000,
        b"HTTP/1.1 102 Processing\r\n\r\n" * 200_000,
    ],
    ids=["body", "header", "preliminary answers"],
)
async def test_an_endless_answer_is_cut_short(pool, peer, raw):
    peer.script = [raw]
    with pytest.raises(EngineProtocolError, match="too large"):
        await pool.get("/x", deadline=soon())
    await peer.until_open(0)


async def test_a_late_answer_is_a_timeout_and_its_connection_closed(pool, peer):
    peer.script = [b"HTTP/1.1 200 OK\r\n"]
    with pytest.raises(EngineTimeout):
        await pool.get("/x", deadline=soon(0.05))
    await peer.until_open(0)


async def test_a_cancelled_call_closes_its_connection(pool, peer):
    peer.script = [b""]
    call = asyncio.create_task(pool.get("/x", deadline=soon()))
    await peer.until_asked(1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await peer.until_open(0)


async def test_idle_connections_are_closed_before_the_engine_does(pool, peer, monkeypatch):
    monkeypatch.setattr("backend.transport._KEEP_ALIVE_SECONDS", 0.05)
    await asyncio.gather(*(pool.get("/x", deadline=soon()) for _ in range(3)))
    await peer.until_open(0)
    assert await pool.get("/x", deadline=soon()) == (200, b"{}")
    assert peer.connections == 4


async def test_one_that_has_idled_for_less_is_closed_later(pool, peer, monkeypatch):
    monkeypatch.setattr("backend.transport._KEEP_ALIVE_SECONDS", 0.2)
    peer.script = [b""]
    busy = asyncio.create_task(pool.get("/x", deadline=soon()))
    await peer.until_asked(1)
    await pool.get("/y", deadline=soon())
    await asyncio.sleep(0.05)
    peer.writers[0].write(OK)
    await busy
    await peer.until_open(0)


async def test_closing_ends_idle_and_busy_connections(pool, peer):
    await pool.get("/x", deadline=soon())
    peer.script = [b""]
    busy = asyncio.create_task(pool.get("/x", deadline=soon()))
    await peer.until_asked(2)
    await pool.get("/y", deadline=soon())
    await pool.aclose()
    with pytest.raises(EngineUnavailable):
        await busy
    with pytest.raises(EngineUnavailable, match="has been closed"):
        await pool.get("/x", deadline=soon())
    await peer.until_open(0)


async def test_a_call_that_is_still_connecting_when_the_pool_closes_fails(pool, peer):
    peer.script = [b"", b""]
    busy = asyncio.create_task(pool.get("/x", deadline=soon()))
    await peer.until_asked(1)
    connecting = asyncio.create_task(pool.get("/y", deadline=soon()))
    await asyncio.sleep(0)
    await pool.aclose()
    for call in (busy, connecting):
        with pytest.raises(EngineUnavailable):
            await asyncio.wait_for(call, 5)
    await peer.until_open(0)
    assert len(peer.requests) == 1


async def test_nothing_listens_there():
    pool = ConnectionPool("http://127.0.0.1:9")
    with pytest.raises(EngineUnavailable, match="cannot be reached"):
        await pool.get("/x", deadline=soon())
    await pool.aclose()


async def test_a_deadline_that_has_passed_counts_before_a_connection_is_made(pool):
    with pytest.raises(EngineTimeout):
        await pool.get("/x", deadline=soon(-1))


async def test_an_encrypted_address_is_not_spoken_to_in_clear(peer):
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    pool = ConnectionPool(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises((EngineUnavailable, EngineTimeout)):
        await pool.get("/x", deadline=soon(0.2))
    await pool.aclose()
    server.close()
    await peer.until_open(0)
    assert peer.requests == []


async def test_a_peer_that_answers_a_handshake_with_something_else_is_told_as_that():
    async def plain(reader, writer):
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    pool = ConnectionPool(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(
        EngineUnavailable, match=r"certificate is not trusted here, or it does not speak TLS"
    ):
        await pool.get("/x", deadline=soon())
    await pool.aclose()
    server.close()


async def test_a_header_cannot_carry_another(pool, peer):
    with pytest.raises(ValueError, match="line break"):
        await pool.post("/x", b"", deadline=soon(), headers={"x-key": "a\r\nx-other: b"})
    assert peer.requests == []
