"""What a client on a socket sees of uvicorn: limits, refusals, and the end of the server."""

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from backend.launch import open_listener
from backend.serving import uvicorn_channel
from backend.serving.uvicorn_server import UvicornServer
from tests.support.loopback import free_port
from tests.support.raw_http import BROKEN, GET, POST, error_in

WHOLE = GET + "\r\n"
left = threading.Event()


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Say what was asked for and how long the body was; `/late` answers late, `/never` never.

    `/stays` notes that its client has left.
    """
    length, more = 0, scope["path"] not in {"/deaf", "/begins"}
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            return
        length, more = length + len(event["body"]), event["more_body"]
    if scope["path"] == "/broken":
        raise ValueError("broken application")
    if scope["path"] == "/begins":
        await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] in {"/never", "/begins"}:
        await asyncio.Event().wait()
    if scope["path"] == "/stays":
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()
        return
    if scope["path"] == "/late":
        await asyncio.sleep(0.2)
    said = b"%s?%s %d" % (scope["path"].encode(), scope["query_string"], length)
    headers = [(b"content-length", b"%d" % len(said))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": said})


class Serving:
    """A server on a thread of its own.

    Attributes:
        said: the exit code it came to.
    """

    def __init__(self, http_timeout: float = 20.0) -> None:
        self.port = free_port()
        listener = open_listener("127.0.0.1", self.port, "--port")
        self._server = UvicornServer(application, listener, http_timeout=http_timeout)
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._begun.wait(10)

    def _run(self) -> None:
        self.said = self._server.run(self._main)

    async def _main(self) -> int:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        await self._server.start_accepting()
        self._begun.set()
        await self._end.wait()
        return 7

    def call(self, name: str, *arguments: Any) -> None:
        """Call a method of the server's on its loop."""
        method = getattr(self._server, name)
        asyncio.run_coroutine_threadsafe(method(*arguments), self._loop).result(10)

    def until_left(self) -> None:
        """Wait until nobody is connected."""
        deadline = time.monotonic() + 10
        while self._server._state.connections:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def end(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.fixture
def serving() -> Iterator[Serving]:
    serving = Serving()
    yield serving
    serving.end()


def connect(serving: Serving) -> socket.socket:
    return socket.create_connection(("127.0.0.1", serving.port), timeout=10)


def rest(client: socket.socket) -> str:
    """Everything until the server closes."""
    return b"".join(iter(lambda: client.recv(2**16), b"")).decode()


def say(serving: Serving, text: str, *more: str) -> str:
    """What comes back until the server closes; pieces after the first are sent apart."""
    with connect(serving) as client:
        client.sendall(text.encode("latin-1"))
        for piece in more:
            time.sleep(0.02)
            client.sendall(piece.encode("latin-1"))
        return rest(client)


@pytest.mark.parametrize("broken", [*BROKEN, "CONNECT a:1 HTTP/1.1\r\n\r\n"])
def test_broken_requests_are_refused_like_any_other(serving: Serving, broken: str) -> None:
    if broken == "\r\n\r\n":
        broken += "\x00"  # empty lines before a request are allowed
    error = error_in(say(serving, broken), 400)
    assert error["type"] == "api_usage_error"
    assert error["message"].startswith("The request is malformed: ")


def test_what_breaks_after_good_requests_does_not_harm_their_answers(serving: Serving) -> None:
    late = WHOLE.replace(" / ", " /late ")
    for good in (WHOLE, late, late + late, late + WHOLE + WHOLE):
        for bad in ("nonsense\r\n\r\n", POST + "Transfer-Encoding: chunked\r\n\r\nzz\r\n"):
            answers = say(serving, good + bad)
            assert answers.count("HTTP/1.1 200 OK") == good.count("GET")
            error_in("HTTP/1.1 400" + answers.partition("HTTP/1.1 400")[2], 400)


def test_what_breaks_while_its_answer_is_under_way_ends_the_connection(serving: Serving) -> None:
    begun = POST.replace(" / ", " /begins ") + "Transfer-Encoding: chunked\r\n\r\n"
    answer = say(serving, begun, "zz\r\n")
    assert answer.startswith("HTTP/1.1 200 OK")
    assert answer.count("HTTP/1.1") == 1


def test_heads_and_framing_are_bounded_whatever_their_form(serving: Serving) -> None:
    line = "X: " + "y" * 1000 + "\r\n"
    chunked = POST + "Transfer-Encoding: chunked\r\n\r\n"
    endless = {
        "line": [GET + "X: ", *["y" * 8000] * 9],
        "lines": [GET, *[line * 8] * 9],
        "trailers": [chunked + "1\r\nx\r\n0\r\n", *[line * 8] * 9],
        "extension": [chunked + "1;", *["y" * 8000] * 9],
    }
    for pieces in endless.values():
        error_in(say(serving, *pieces), 400)


def test_much_framing_is_allowed_around_a_long_body(serving: Serving) -> None:
    chunks = "1\r\nx\r\n" * 20_000
    text = POST + "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + "0\r\n\r\n"
    assert say(serving, text).endswith("/? 20000")


def test_head_and_body_come_together(serving: Serving) -> None:
    with connect(serving) as client:
        for _ in range(50):
            client.sendall(WHOLE.encode())
            answer = client.recv(2**16)
            assert answer.startswith(b"HTTP/1.1 200 OK")
            assert answer.endswith(b"/? 0")


def test_only_clients_that_know_it_are_told_to_go_on(serving: Serving) -> None:
    wait = "Expect: 100-continue\r\nConnection: close\r\nContent-Length: 1\r\n\r\n"
    assert say(serving, POST + wait, "x").startswith("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")
    assert say(serving, POST.replace("/1.1", "/1.0") + wait, "x").startswith("HTTP/1.1 200 OK")


def test_trailers_do_not_become_headers(serving: Serving) -> None:
    chunked = POST + "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: y\r\n\r\n"
    assert "/? 1" in say(serving, chunked + "nonsense\r\n\r\n")


def test_clients_that_say_too_little_are_given_up(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_channel, "REQUEST_SECONDS", 0.3)
    length = "Content-Length: 9\r\n\r\n"
    for start in ("GET / HT", GET, GET + "X: ", WHOLE + GET, POST + length, POST + length + "x"):
        answer = say(serving, start)
        answer = "HTTP/1.1 408" + answer.partition("HTTP/1.1 408")[2]
        assert "0.3 seconds" in error_in(answer, 408)["message"]
    for nothing in ("", "\r\n"):
        assert say(serving, nothing) == ""
    assert say(serving, WHOLE, "\r\n").endswith("/? 0")
    assert say(serving, POST.replace(" / ", " /deaf ") + length, "x").endswith("/deaf? 0")


def test_slow_answers_are_not_given_up_and_a_body_has_a_time_of_its_own(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_channel, "REQUEST_SECONDS", 0.1)
    late = GET.replace(" / ", " /late ")
    assert say(serving, late + "Connection: close\r\n\r\n").endswith("/late? 0")
    posted = POST + "Connection: close\r\nContent-Length: 8\r\n\r\n"
    answers = say(serving, late + "\r\n" + posted + "1234", "5678")  # the body waits for its turn
    assert answers.count("HTTP/1.1 200 OK") == 2
    trickling = POST + "Content-Length: 20\r\n\r\n"
    assert "0.1 seconds" in error_in(say(serving, trickling, *"123456789"), 408)["message"]
    monkeypatch.setattr(uvicorn_channel, "REQUEST_SECONDS", 10.0)
    assert say(serving, posted, *"12345678").endswith("/? 8")


def test_a_body_has_the_same_time_once_its_turn_has_come(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_channel, "REQUEST_SECONDS", 0.3)
    posted = POST + "Content-Length: 9\r\n\r\n1234"
    answers = say(serving, WHOLE.replace(" / ", " /late ") + posted)  # and nothing more comes
    assert answers.startswith("HTTP/1.1 200 OK")
    assert (
        "0.3 seconds"
        in error_in("HTTP/1.1 408" + answers.partition("HTTP/1.1 408")[2], 408)["message"]
    )


def test_who_has_been_refused_is_not_told_to_go_on(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = POST + "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
    error_in(say(serving, waiting + "zz\r\n"), 400)
    assert say(serving, GET + "Connection: close\r\n\r\n").endswith("/? 0")
    assert "Exception" not in caplog.text


@pytest.mark.parametrize("behind", ["", WHOLE])
def test_nothing_is_in_flight_where_only_a_refused_request_is_left(
    serving: Serving, behind: str
) -> None:
    broken = POST + "Transfer-Encoding: chunked\r\n\r\nzz\r\n"
    with connect(serving) as client:
        client.sendall((WHOLE.replace(" / ", " /late ") + behind + broken).encode())
        assert " 400 " in rest(client)
        begun = time.monotonic()
        serving.call("finish_answers", 5.0)
        assert time.monotonic() - begun < 2


def test_a_refused_client_reads_the_answer_while_it_still_sends_for_a_while(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_channel, "LINGER_BYTES", 500_000)
    monkeypatch.setattr(uvicorn_channel, "LINGER_SECONDS", 0.5)
    for size, pause in ((10_000, 0.001), (1, 0.02)):
        with connect(serving) as client:
            client.sendall(b"nonsense\r\n\r\n")
            error_in(rest(client), 400)
            begun, sent = time.monotonic(), 0
            with suppress(ConnectionResetError, BrokenPipeError):
                while time.monotonic() < begun + 5:
                    sent += client.send(bytes(size))
                    time.sleep(pause)
            assert sent > 500_000 or 0.4 < time.monotonic() - begun < 3


def test_addresses_as_proxies_are_sent_them_are_ours(serving: Serving) -> None:
    addresses = {
        "http://elsewhere:80/a/b?c=d": "/a/b?c=d 0",
        "HTTPS://user@[::1]/": "/? 0",
        "http://elsewhere": "/? 0",
        "http://elsewhere?c": "/?c 0",
        "/http://x/?http://y/z": "/http://x/?http://y/z 0",
    }
    for address, said in addresses.items():
        assert say(serving, f"GET {address} HTTP/1.0\r\n\r\n").endswith("\r\n" + said)


def test_a_wish_for_another_protocol_is_answered_in_this_one(serving: Serving) -> None:
    wish = "Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\na"
    answer = say(serving, POST + wish, "bc" + WHOLE + "nonsense\r\n\r\n")
    first, second, refused = answer.split("HTTP/1.1 ")[1:]
    assert first.endswith("/? 3")
    assert second.endswith("/? 0")
    assert refused.startswith("400 ")


@pytest.mark.parametrize("behind", ["", WHOLE, WHOLE * 3])
def test_a_client_that_leaves_ends_what_it_waits_for(serving: Serving, behind: str) -> None:
    left.clear()
    with connect(serving) as client:
        client.sendall((WHOLE.replace(" / ", " /stays ") + behind).encode())
        assert not left.wait(0.1)
    assert left.wait(10)


def test_nobody_is_told_what_serves(serving: Serving) -> None:
    answer = say(serving, GET + "Connection: close\r\n\r\n")
    assert "server:" not in answer.lower()


def test_an_application_that_forgets_to_answer_is_answered_for() -> None:
    serving = Serving(http_timeout=0.2)
    error = error_in(say(serving, WHOLE.replace(" / ", " /never ")), 503)
    assert error["type"] == "backend_unavailable"
    assert "503" not in say(serving, WHOLE.replace(" / ", " /begins "))
    serving.end()


def test_the_time_of_an_answer_begins_when_the_request_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serving = Serving(http_timeout=0.3)
    posted = POST + "Connection: close\r\nContent-Length: 20\r\n\r\n"
    late = WHOLE.replace(" / ", " /late ")
    for before in ("", late, late + late):
        answers = say(serving, before + posted, *"12345678901234567890")  # longer than 0.4 s
        assert answers.endswith("/? 20")
    never = posted.replace(" / ", " /never ")
    error_in(say(serving, never + "x" * 20), 503)
    error_in(say(serving, never, "x" * 20), 503)
    monkeypatch.setattr(uvicorn_channel, "REQUEST_SECONDS", 0.5)
    error_in(say(serving, posted), 408)
    serving.end()


def test_after_it_was_answered_for_there_is_no_second_refusal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(uvicorn_channel, "REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(uvicorn_channel, "LINGER_SECONDS", 0.3)
    serving = Serving(http_timeout=0.2)
    with connect(serving) as client:
        client.sendall((WHOLE.replace(" / ", " /never ") + GET).encode())
        error_in(rest(client), 503)
        with suppress(ConnectionResetError, BrokenPipeError):  # until the server closes
            while client.send(b"X"):
                time.sleep(0.02)
    serving.end()
    assert "408" not in caplog.text
    assert "Exception" not in caplog.text


def test_who_has_left_unnoticed_is_not_answered_for(caplog: pytest.LogCaptureFixture) -> None:
    serving = Serving(http_timeout=0.2)
    with connect(serving) as client:
        client.sendall((WHOLE.replace(" / ", " /begins ") + WHOLE).encode())  # no more is read now
        time.sleep(0.05)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    serving.until_left()
    serving.end()
    assert "Exception" not in caplog.text


def test_a_broken_application_is_answered_for(serving: Serving) -> None:
    assert say(serving, WHOLE.replace(" / ", " /broken ")).startswith("HTTP/1.1 500 ")


def test_what_is_in_flight_is_answered_after_new_connections_are_refused(serving: Serving) -> None:
    with connect(serving) as client:
        client.sendall(WHOLE.replace(" / ", " /late ").encode())
        time.sleep(0.05)
        serving.call("stop_accepting")
        serving.call("stop_accepting")
        with pytest.raises(ConnectionRefusedError):
            connect(serving)
        serving.call("finish_answers", 5.0)
        serving.end()
        assert serving.said == 7
        assert rest(client).endswith("/late? 0")


def test_what_never_ends_is_waited_for_as_long_as_told(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(serving) as client:
        client.sendall(WHOLE.replace(" / ", " /never ").encode())
        time.sleep(0.05)
        begun = time.monotonic()
        serving.call("finish_answers", 0.2)
        assert 0.2 <= time.monotonic() - begun < 2
        serving.end()
        assert rest(client) == ""
    assert caplog.text == ""
