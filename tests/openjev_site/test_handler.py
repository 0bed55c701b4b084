"""The lean handler does what Django's does, without threads."""

import asyncio
from typing import Any

import pytest
from asgiref.sync import SyncToAsync
from django.core import signals
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import ResolverMatch, get_resolver, get_script_prefix, path

from openjev_site import handler
from openjev_site.handler import Handler
from tests.openjev_site.exchange import DISCONNECT, Reply, body_events, exchange, http_scope

entered = asyncio.Event()
cancelled: list[str] = []


async def endless(request: Any) -> HttpResponse:
    entered.set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.append(request.path)
        raise
    raise AssertionError


async def slow(_request: Any) -> HttpResponse:
    await asyncio.sleep(0.05)
    return HttpResponse("slow")


async def long_text(_request: Any) -> HttpResponse:
    return HttpResponse("x" * 300_000)


async def echo(request: Any) -> HttpResponse:
    return HttpResponse(request.body)


async def failing(_request: Any) -> HttpResponse:
    raise ValueError("secret")


def in_a_thread(_request: Any) -> HttpResponse:
    return HttpResponse("sync")


async def streamed(_request: Any) -> StreamingHttpResponse:
    async def parts() -> Any:
        yield b"one"
        yield b"two"

    return StreamingHttpResponse(parts())


async def refused(_request: Any) -> HttpResponse:
    return HttpResponse(status=422)


async def nothing(_request: Any) -> HttpResponse:
    return HttpResponse(status=204)


async def gives_up(_request: Any) -> HttpResponse:
    raise asyncio.CancelledError


async def where(_request: Any) -> HttpResponse:
    return HttpResponse(get_script_prefix())


async def rest_of_address(_request: Any, rest: str) -> HttpResponse:
    return HttpResponse(rest)


urlpatterns = [
    path("endless", endless),
    path("slow", slow),
    path("long", long_text),
    path("echo", echo),
    path("failing", failing),
    path("sync", in_a_thread),
    path("streamed", streamed),
    path("refused", refused),
    path("nothing", nothing),
    path("gives-up", gives_up),
    path("any/<path:rest>", rest_of_address),
    path("where", where),
]
handler404 = "evaluations.errors.not_found"
handler500 = "evaluations.errors.server_error"


@pytest.fixture(autouse=True)
def routes(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    entered.clear()
    cancelled.clear()


@pytest.fixture
def finished() -> Any:
    count: list[str] = []

    def note(sender: Any, **_: Any) -> None:
        count.append("finished")

    signals.request_finished.connect(note)
    yield count
    signals.request_finished.disconnect(note)


@pytest.mark.parametrize(
    ("method", "route"),
    [
        ("GET", "/long"),
        ("POST", "/echo"),
        ("GET", "/failing"),
        ("GET", "/sync"),
        ("GET", "/streamed"),
        ("GET", "/nothing"),
        ("GET", "/none"),
    ],
)
async def test_it_answers_what_the_stock_handler_answers(
    method: str, route: str, finished: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evaluations.request_log.new_request_id", lambda: "req_0")

    def seen(reply: Reply) -> Any:
        headers = {k: v for k, v in reply.headers.items() if k != "content-length"}
        return reply.status, headers, reply.body, reply.complete

    stock = await exchange(ASGIHandler(), method, route, chunks=[b"some ", b"text"])
    lean = await exchange(Handler(), method, route, chunks=[b"some ", b"text"])
    assert seen(lean) == seen(stock)
    assert finished == ["finished"] * 2


async def test_asynchronous_views_cost_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    hops: list[Any] = []
    original = SyncToAsync.__call__

    async def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        hops.append(self.func)
        return await original(self, *args, **kwargs)

    monkeypatch.setattr(SyncToAsync, "__call__", counted)
    app = Handler()
    for route, status in (("/echo", 200), ("/refused", 422)):
        assert (await exchange(app, "POST", route, chunks=[b"{}"])).status == status
    assert hops == []
    assert (await exchange(app, "GET", "/sync")).status == 200
    assert len(hops) == 1


async def test_a_long_body_leaves_in_one_message_with_its_length() -> None:
    reply = await exchange(Handler(), "GET", "/long")
    assert [event["type"] for event in reply.events] == [
        "http.response.start",
        "http.response.body",
    ]
    assert reply.headers["content-length"] == "300000"


async def test_the_views_of_addresses_are_remembered_unless_they_are_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_up: list[str] = []

    class Noting:
        def resolve(self, route: str) -> ResolverMatch:
            looked_up.append(route)
            return get_resolver(__name__).resolve(route)

    monkeypatch.setattr(handler, "get_resolver", lambda _urlconf: Noting())
    short, long = "/any/short", "/any/" + "long" * 1000
    for route in (short, long):
        for _ in range(2):
            reply = await exchange(Handler(), "GET", route)
            assert reply.body.decode() == route.removeprefix("/any/")
    assert looked_up == [short, long, long]


async def test_a_client_that_leaves_cancels_the_view(finished: list[str]) -> None:
    waiting = body_events([b""])
    sent: list[Any] = []

    async def receive() -> Any:
        if waiting:
            return waiting.pop()
        await entered.wait()
        return DISCONNECT

    async def send(event: Any) -> None:
        sent.append(event)

    async with asyncio.timeout(5):
        await Handler()(http_scope("POST", "/endless"), receive, send)
    assert cancelled == ["/endless"]
    assert finished == ["finished"]
    assert sent == []


async def test_a_server_that_cancels_the_request_cancels_the_view(finished: list[str]) -> None:
    serving = asyncio.create_task(exchange(Handler(), "POST", "/endless"))
    async with asyncio.timeout(5):
        await entered.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert cancelled == ["/endless"]
    assert finished == ["finished"]


async def test_a_view_that_gives_up_by_itself_ends_the_request(finished: list[str]) -> None:
    assert (await exchange(Handler(), "GET", "/gives-up")).events == []
    assert finished == ["finished"]


@pytest.mark.parametrize("unwatched", [60.0, 0.0])
async def test_nobody_listens_to_a_client_at_first_nor_when_it_has_its_answer(
    monkeypatch: pytest.MonkeyPatch, unwatched: float
) -> None:
    monkeypatch.setattr(handler, "UNWATCHED_SECONDS", unwatched)
    waiting = body_events([b""])
    asked: list[str] = []
    sent: list[Any] = []

    async def receive() -> Any:
        if not waiting:
            asked.append("whether it has left")
            await asyncio.Event().wait()
        return waiting.pop()

    async def send(event: Any) -> None:
        sent.append(event)

    before = asyncio.all_tasks()
    await Handler()(http_scope("GET", "/slow"), receive, send)
    await asyncio.sleep(0)
    assert sent[-1]["body"] == b"slow"
    assert len(asked) == (1 if unwatched == 0 else 0)
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize(("root", "prefix"), [("/under", b"/under/"), ("", b"/")])
async def test_it_may_be_served_under_another_address(root: str, prefix: bytes) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Handler()({**scope, "root_path": root}, receive, send)

    assert (await exchange(app, "GET", f"{root}/where")).body == prefix


async def test_a_client_that_leaves_during_its_body_is_not_answered() -> None:
    assert (await exchange(Handler(), "POST", "/echo", events=[DISCONNECT])).events == []


async def test_a_query_that_is_no_text_is_a_400_in_the_contracts_shape() -> None:
    reply = await exchange(Handler(), "GET", "/sync", query=b"a=\xff")
    assert reply.status == 400
    assert reply.json["error"]["type"] == "api_usage_error"
    assert int(reply.headers["content-length"]) == len(reply.body)
    assert "UTF-8" in reply.json["error"]["message"]
