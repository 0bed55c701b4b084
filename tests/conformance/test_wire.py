"""What the server itself refuses, before the application sees it, has the form of all errors."""

import re
import time
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

import httpx
import pytest
from backports import zstd

from tests.support.bombs import forget_peak, peak_kib, zstd_bomb
from tests.support.served import Served

pytestmark = [pytest.mark.conformance, pytest.mark.process]

ROUTE = "/v1/systemone"
SECONDS = 30.0


def assert_is_an_error(response: httpx.Response, status: int, name: str) -> None:
    assert response.status_code == status
    assert response.headers["Content-Type"] == "application/json"
    ids = {response.headers[f"x-{whose}request-id"] for whose in ("typesafe-", "")}
    assert len(ids) == 1
    assert re.fullmatch("req_[0-9a-f]{32}", ids.pop())
    body = response.json()
    message = body["error"]["message"]
    assert message.endswith(".")
    assert body["error"] == {"message": message, "type": name}
    assert body["detail"] == {"error_type": name, "message": message}


def test_status_line_names_the_status(default_product: Served) -> None:
    response = httpx.post(f"{default_product.url}{ROUTE}", content=b"{}", timeout=SECONDS)
    assert response.status_code == 422
    assert response.reason_phrase.startswith("Unprocessable")


@pytest.mark.parametrize("accept", ["text/csv", "image/*;q=1, text/plain"])
def test_other_answer_types_are_refused(default_product: Served, accept: str) -> None:
    response = httpx.post(
        f"{default_product.url}{ROUTE}", json={}, headers={"Accept": accept}, timeout=SECONDS
    )
    assert_is_an_error(response, 406, "api_usage_error")
    assert "application/json" in response.json()["error"]["message"]


@pytest.mark.parametrize("value", ["\u0085", "\u00c5ngstr\u00f6m", "a\u001cb"])
def test_header_that_cannot_be_passed_on_is_refused(default_product: Served, value: str) -> None:
    headers = {"X-Title": value.encode()}
    response = httpx.get(f"{default_product.url}/v1/models", headers=headers, timeout=SECONDS)
    assert_is_an_error(response, 400, "api_usage_error")
    assert "header value" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded; charset=\u00ff",
        "\u00ff\u00a0/;;=",
    ],
)
def test_forms_are_refused_whatever_is_in_them(default_product: Served, content_type: str) -> None:
    response = httpx.post(
        f"{default_product.url}{ROUTE}",
        content=b"--y\r\n&=%\xff",
        headers={"Content-Type": content_type.encode("latin-1")},
        timeout=SECONDS,
    )
    assert_is_an_error(response, 415, "api_usage_error")


@pytest.mark.parametrize("headers", [{}, {"Expect": "100-continue"}])
def test_too_long_body_is_refused_before_it_is_sent(
    default_product: Served, headers: dict[str, str]
) -> None:
    connection = HTTPConnection(urlsplit(default_product.url).netloc, timeout=SECONDS)
    connection.putrequest("POST", ROUTE)
    for name, value in {"Content-Length": "2097153", **headers}.items():
        connection.putheader(name, value)
    connection.endheaders()
    with closing(connection), connection.getresponse() as answer:
        response = httpx.Response(answer.status, headers=answer.getheaders(), content=answer.read())
    assert_is_an_error(response, 413, "request_too_large")
    assert response.headers["Connection"] == "close"
    assert "2097152 bytes" in response.json()["error"]["message"]


def test_nobody_reads_a_long_form(default_product: Served) -> None:
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        response = httpx.post(
            f"{default_product.url}{ROUTE}",
            content=b"--x\r\n\r\n" * 250_000 + b"--x--",
            headers={"Content-Type": "multipart/form-data; boundary=x"},
            timeout=SECONDS,
        )
        seconds.append(time.perf_counter() - begun)
        assert_is_an_error(response, 415, "api_usage_error")
    assert min(seconds) < 1, seconds  # reading the parts takes the event loop three seconds


def test_bomb_of_over_1_gb_costs_the_server_less_than_8_mb(default_product: Served) -> None:
    bomb = zstd_bomb()
    assert len(bomb) < 100 * 1024
    with httpx.Client(
        base_url=default_product.url, headers={"Content-Encoding": "zstd"}, timeout=SECONDS
    ) as client:
        usual = client.post(ROUTE, content=zstd.compress(b"{}" + b" " * 1_000_000))
        assert usual.status_code == 422  # taken in: from here on only the bomb is new
        before = forget_peak(default_product.process.pid)
        response = client.post(ROUTE, content=bomb)
        grown = peak_kib(default_product.process.pid) - before
    assert_is_an_error(response, 413, "request_too_large")
    assert grown < 8 * 1024
