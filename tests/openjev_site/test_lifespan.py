"""When the runtime starts and stops, and what requests see of it."""

import asyncio
import logging
from typing import Any

import pytest

from openjev_site.lifespan import Lifespan
from tests.openjev_site.exchange import Echo, exchange


class FakeRuntime:
    """Notes what is asked of it, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.start_error: Exception | None = None
        self.stop_error: Exception | None = None
        self.reason = ""

    def start(self) -> None:
        if self.start_error:
            raise self.start_error
        if "start" not in self.events:
            self.events.append("start")

    async def refused(self) -> str:
        return self.reason

    async def stop(self) -> None:
        if self.stop_error:
            raise self.stop_error
        self.events.append("stop")


class Server:
    """Drives the lifespan protocol as a server does."""

    def __init__(self, app: Any, **scope: Any) -> None:
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope |= {"type": "lifespan", "asgi": {"version": "3.0"}}
        self.task = asyncio.create_task(app(scope, self._inbox.get, self._outbox.put))

    def tell(self, event: str) -> None:
        self._inbox.put_nowait({"type": f"lifespan.{event}"})

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(5):
            return await self._outbox.get()


class Slow:
    """An application whose requests finish when the test says so."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.release = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.entered.set()
        await self.release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


def around(app: Any, runtime: FakeRuntime, *, drain_seconds: float = 30) -> Lifespan:
    return Lifespan(app, lambda: runtime, drain_seconds=drain_seconds)


async def test_the_server_starts_and_stops_the_runtime(runtime: FakeRuntime) -> None:
    app = around(Echo(), runtime)
    server = Server(app)
    server.tell("startup")
    assert (await server.hear())["type"] == "lifespan.startup.complete"
    assert runtime.events == ["start"]
    assert (await exchange(app)).status == 200
    assert (await exchange(app)).status == 200
    assert runtime.events == ["start"]
    server.tell("shutdown")
    assert (await server.hear())["type"] == "lifespan.shutdown.complete"
    assert runtime.events == ["start", "stop"]
    await server.task


async def test_a_server_that_keeps_state_can_learn_that_waiting_is_in_vain(
    runtime: FakeRuntime,
) -> None:
    runtime.reason = "The tokenizer does not fit."
    state: dict[str, Any] = {}
    server = Server(around(Echo(), runtime), state=state)
    server.tell("startup")
    await server.hear()
    assert await state["refused"]() == "The tokenizer does not fit."
    server.tell("shutdown")
    await server.hear()
    await server.task


async def test_without_a_lifespan_the_first_request_starts_the_runtime(
    runtime: FakeRuntime,
) -> None:
    app = around(Echo(), runtime)
    assert runtime.events == []
    await exchange(app)
    await exchange(app)
    assert runtime.events == ["start"]


async def test_a_first_request_that_cannot_start_it_leaves_it_to_the_next(
    runtime: FakeRuntime,
) -> None:
    app = around(Echo(), runtime)
    runtime.start_error = RuntimeError("not now")
    with pytest.raises(RuntimeError):
        await exchange(app)
    runtime.start_error = None
    assert (await exchange(app)).status == 200
    assert runtime.events == ["start"]


async def test_shutdown_waits_for_requests_in_flight_and_refuses_new_ones(
    runtime: FakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    slow = Slow()
    app = around(slow, runtime)
    server = Server(app)
    server.tell("startup")
    await server.hear()
    first = asyncio.create_task(exchange(app))
    await slow.entered.wait()
    server.tell("shutdown")
    for _ in range(5):  # turns of the loop in which the event reaches the application
        await asyncio.sleep(0)

    refused = await exchange(app)
    assert refused.status == 503
    assert refused.json["error"]["type"] == "backend_unavailable"
    assert refused.headers["retry-after"] == "2"
    assert refused.headers["connection"] == "close"
    assert runtime.events == ["start"]
    assert "Waiting for 1 request in flight." in caplog.text

    slow.release.set()
    assert (await first).body == b"done"
    assert (await server.hear())["type"] == "lifespan.shutdown.complete"
    assert runtime.events == ["start", "stop"]


async def test_a_request_that_never_ends_holds_the_shutdown_only_for_the_grace(
    runtime: FakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    slow = Slow()
    app = around(slow, runtime, drain_seconds=0.05)
    server = Server(app)
    stuck = asyncio.create_task(exchange(app))
    await slow.entered.wait()
    server.tell("shutdown")
    assert (await server.hear())["type"] == "lifespan.shutdown.complete"
    assert runtime.events == ["start", "stop"]
    assert "1 request did not finish within 0.05 seconds; stopping" in caplog.text
    slow.release.set()
    await stuck


async def test_a_server_that_does_not_wait_for_the_grace_stops_the_runtime_all_the_same(
    runtime: FakeRuntime,
) -> None:
    slow = Slow()
    app = around(slow, runtime)
    server = Server(app)
    stuck = asyncio.create_task(exchange(app))
    await slow.entered.wait()
    server.tell("shutdown")
    await asyncio.wait([server.task], timeout=0.05)
    server.task.cancel()
    await asyncio.gather(server.task, return_exceptions=True)
    assert runtime.events == ["start", "stop"]
    slow.release.set()
    await stuck


async def test_a_failed_request_is_no_longer_in_flight(runtime: FakeRuntime) -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError

    app = around(failing, runtime)
    with pytest.raises(ValueError):
        await exchange(app)
    server = Server(app)
    server.tell("shutdown")
    assert (await server.hear())["type"] == "lifespan.shutdown.complete"


async def test_a_start_that_fails_is_reported_to_the_server(
    runtime: FakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    runtime.start_error = RuntimeError("The port is taken.")
    server = Server(around(Echo(), runtime))
    server.tell("startup")
    assert await server.hear() == {
        "type": "lifespan.startup.failed",
        "message": "The port is taken.",
    }
    await server.task
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_a_stop_that_fails_is_reported_to_the_server(runtime: FakeRuntime) -> None:
    runtime.stop_error = RuntimeError("The engine does not let go.")
    server = Server(around(Echo(), runtime))
    server.tell("shutdown")
    assert (await server.hear())["type"] == "lifespan.shutdown.failed"
    await server.task


async def test_other_protocols_pass(runtime: FakeRuntime) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    await around(app, runtime)({"type": "websocket"}, None, None)  # type: ignore
    assert seen == ["websocket"]
    assert runtime.events == []
