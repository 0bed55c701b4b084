"""The browsable page: it explains itself, its form works, it shows answers and errors."""

import html
import json
import re
from urllib.parse import urlencode

import pytest
from django.http import HttpResponse
from django.test import AsyncClient

from evaluations.examples import example_request
from tests.evaluations.conftest import Configure
from tests.evaluations.stand_in import StandInRuntime

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


def form_text(response: HttpResponse) -> str:
    found = re.search(r"<textarea[^>]*>\s*(.*?)</textarea>", response.content.decode(), re.DOTALL)
    assert found
    return html.unescape(found[1])


async def test_page_shows_a_form_with_an_example(api: AsyncClient) -> None:
    response = await api.get("/v1/systemone", headers=BROWSER)
    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/html")
    assert response["Allow"] == "GET, POST, HEAD, OPTIONS"
    assert json.loads(form_text(response)) == example_request()
    page = response.content.decode()
    assert "System One" in page
    assert 'name="viewport"' in page
    assert "Set-Cookie" not in response.headers


async def test_page_asks_no_other_host(api: AsyncClient) -> None:
    page = (await api.get("/v1/systemone", headers=BROWSER)).content.decode()
    loaded = re.findall(r'(?:src|<link[^>]*href)="([^"]+)"', page)
    assert loaded
    assert all(address.startswith("/") and not address.startswith("//") for address in loaded)


@pytest.mark.parametrize("scripted", [True, False])
async def test_form_works_with_and_without_javascript(
    api: AsyncClient, runtime: StandInRuntime, scripted: bool
) -> None:
    text = form_text(await api.get("/v1/systemone", headers=BROWSER)).replace("twice", "thrice")
    response = await api.post(
        "/v1/systemone",
        text if scripted else urlencode({"_content_type": "application/json", "_content": text}),
        content_type="application/json" if scripted else "application/x-www-form-urlencoded",
        headers=BROWSER,
    )
    assert response.status_code == 200
    assert runtime.asked[0].state == example_request()["state"].replace("twice", "thrice")
    page = html.unescape(response.content.decode())
    assert '"choice": "billing"' in page
    assert form_text(response) == text


async def test_error_is_shown_beside_the_text_that_caused_it(api: AsyncClient) -> None:
    response = await api.post(
        "/v1/systemone", '{"<b>": ', content_type="application/json", headers=BROWSER
    )
    assert response.status_code == 422
    assert form_text(response) == '{"<b>": '
    assert "<b>&quot;" not in response.content.decode()
    assert "not valid JSON" in response.content.decode()


async def test_page_needs_the_key_too(api: AsyncClient, configure: Configure) -> None:
    configure(api_key="k")
    response = await api.get("/v1/systemone", headers=BROWSER)
    assert response.status_code == 401
