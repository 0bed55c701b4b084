"""The application as a whole: what each wrapper promises, seen through all of them."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from backend.config import Config, load_config
from openjev_site.decoding import zstd
from openjev_site.edge import build_application, refuse_fatal
from tests.openjev_site.exchange import DISCONNECT, Reply, body_events, exchange, http_scope
from tests.openjev_site.test_lifespan import FakeRuntime, Server

ROOT = Path(__file__).parents[2]


@pytest.fixture
def app() -> Any:
    config: Config = settings.OPENJEV
    return build_application(config, FakeRuntime)


def assert_hybrid(reply: Reply, status: int) -> None:
    assert reply.status == status
    assert reply.complete
    assert reply.headers["content-type"] == "application/json"
    assert reply.json["error"]["message"]
    assert reply.json["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/docs", 200),
        ("GET", "/openapi.json", 200),
        ("GET", "/health/live", 200),
        ("GET", "/static/openjev_site/favicon.svg", 200),
        ("GET", "/static/none.js", 404),
        ("GET", "/none", 404),
        ("POST", "/v1/none", 404),
        ("DELETE", "/health/live", 405),
        ("POST", "/static/openjev_site/favicon.svg", 405),
        ("POST", "/v1/systemone", 422),
    ],
)
async def test_every_response_has_the_id_and_every_error_the_shape(
    app: Any, method: str, path: str, status: int
) -> None:
    reply = await exchange(app, method, path, headers=[("Content-Type", "application/json")])
    assert reply.status == status
    assert reply.headers["x-request-id"].startswith("req_")
    assert reply.headers["x-typesafe-request-id"] == reply.headers["x-request-id"]
    if status >= 400:
        assert_hybrid(reply, status)


async def test_refusals_of_the_edge_have_id_shape_and_log_line(
    app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "openjev_site")
    reply = await exchange(app, headers=[("Content-Encoding", "br")])
    assert_hybrid(reply, 415)
    request_id = reply.headers["x-request-id"]
    assert caplog.messages == [f"{request_id} POST '/v1/systemone' 415"]


async def test_nobody_can_fill_the_log_with_addresses_that_do_not_exist(
    app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for method, path in [("GET", "/none"), ("GET", "/v1/"), ("POST", "/"), ("GET", "/static/none")]:
        assert (await exchange(app, method, path)).status in {404, 405}
    assert caplog.records == []


async def test_chunked_and_coded_bodies_reach_the_validation(app: Any) -> None:
    body = b'{"model": "jev-latest", "state": 5, "questions": {}}'
    plain = [("Content-Type", "application/json")]
    for headers, chunks in [
        (plain, [body[:10], body[10:]]),
        ([*plain, ("Content-Encoding", "zstd")], [zstd.compress(body)]),
    ]:
        reply = await exchange(app, headers=headers, chunks=chunks)
        assert_hybrid(reply, 422)
        faulty = {tuple(fault["loc"]) for fault in reply.json["detail"]}
        assert {("body", "state"), ("body", "questions")} <= faulty


async def test_a_client_that_leaves_before_its_body_is_whole_is_nobodys_error(
    app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    events = [*body_events([b"{", b"}"])[:1], DISCONNECT]
    assert (await exchange(app, events=events)).events == []
    assert caplog.records == []


async def test_half_a_body_does_not_hold_up_the_end(app: Any) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def receive() -> Any:
        if asked.is_set():
            await never.wait()
        asked.set()
        return body_events([b"{", b"}"])[0]

    async def send(event: Any) -> None:
        raise AssertionError(event)

    server = Server(app)
    server.tell("startup")
    await server.hear()
    upload = asyncio.create_task(app(http_scope(), receive, send))
    await asked.wait()
    server.tell("shutdown")
    assert (await server.hear())["type"] == "lifespan.shutdown.complete"
    upload.cancel()
    await asyncio.gather(upload, server.task, return_exceptions=True)
    assert upload.cancelled()  # until then it waited, and was not answered


def test_fatal_settings_are_all_named_and_others_pass() -> None:
    _, problems = load_config({"OPENJEV_MAX_ANSWERS": "1", "OPENJEV_TEMPERATURE": "hot"})
    with pytest.raises(ImproperlyConfigured) as refused:
        refuse_fatal(problems)
    assert "OPENJEV_MAX_ANSWERS" in str(refused.value)
    assert "OPENJEV_TEMPERATURE" in str(refused.value)
    _, harmless = load_config({"OPENJEV_NO_SUCH": "1"})
    assert harmless
    refuse_fatal(harmless)


def imported(**environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENJEV_")}
    kept.pop("DJANGO_SETTINGS_MODULE", None)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", "import openjev_site.asgi"],
        cwd=ROOT,
        env=kept | environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_server_can_import_it_with_nothing_set() -> None:
    finished = imported()
    assert finished.returncode == 0, finished.stderr


def test_it_does_not_come_up_on_settings_it_cannot_use() -> None:
    finished = imported(OPENJEV_MAX_ANSWERS="1", OPENJEV_MAX_QUESTIONS="none")
    assert finished.returncode != 0
    assert "OPENJEV_MAX_ANSWERS is '1'" in finished.stderr
    assert "OPENJEV_MAX_QUESTIONS is 'none'" in finished.stderr
