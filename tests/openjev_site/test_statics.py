"""Static files as a browser gets them."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from django.http import Http404

from openjev_site import statics
from openjev_site.statics import StaticFiles, versioned
from tests.openjev_site.exchange import Echo, Reply, exchange

STYLE = "/static/openjev_site/pages.css"
SOURCE = Path(statics.__file__).parent / "static" / "openjev_site"


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def app(echo: Echo) -> StaticFiles:
    return StaticFiles(echo)


async def get(app: Any, path: str, method: str = "GET", **headers: str) -> Reply:
    path, _, query = path.partition("?")
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return await exchange(app, method, path, headers=named, query=query.encode())


async def test_a_file_is_served_without_collecting(app: StaticFiles) -> None:
    reply = await get(app, STYLE)
    assert reply.status == 200
    assert reply.body == (SOURCE / "pages.css").read_bytes()
    assert reply.headers["content-type"] == "text/css"
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert int(reply.headers["content-length"]) == len(reply.body)


async def test_only_the_present_fingerprint_is_cached_for_ever(app: StaticFiles) -> None:
    reply = await get(app, versioned("openjev_site/pages.css"))
    assert reply.headers["cache-control"] == "public, max-age=31536000, immutable"
    stale = await get(app, f"{STYLE}?v=0123456789abcdef")
    assert stale.status == 200
    assert stale.headers["cache-control"] == "no-cache"


async def test_an_unchanged_file_is_not_sent_again(app: StaticFiles) -> None:
    etag = (await get(app, STYLE)).headers["etag"]
    reply = await get(app, STYLE, if_none_match=etag)
    assert reply.status == 304
    assert reply.body == b""
    assert reply.headers["etag"] == etag
    assert (await get(app, STYLE, if_none_match='"other"')).status == 200


@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [
        ("gzip, deflate, br", True),
        ("br;q=1, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip;q=0.0", False),
        ("identity", False),
        ("", False),
    ],
)
async def test_texts_are_compressed_for_those_who_take_it(
    app: StaticFiles, accepted: str, compressed: bool
) -> None:
    reply = await get(app, STYLE, accept_encoding=accepted)
    assert ("content-encoding" in reply.headers) is compressed
    assert reply.headers["vary"] == "Accept-Encoding"
    body = gzip.decompress(reply.body) if compressed else reply.body
    assert body == (SOURCE / "pages.css").read_bytes()


async def test_images_stay_as_they_are(app: StaticFiles) -> None:
    path = "/static/drf_spectacular_sidecar/swagger-ui-dist/favicon-32x32.png"
    reply = await get(app, path, accept_encoding="gzip")
    assert reply.status == 200
    assert reply.headers["content-type"] == "image/png"
    assert "content-encoding" not in reply.headers


@pytest.mark.parametrize(
    "path",
    [
        "/static/",
        "/static/openjev_site",
        "/static/openjev_site/",
        "/static/openjev_site/none.css",
        "/static/../settings.py",
        "/static/openjev_site/../../../settings.py",
        "/static/../../../../../../etc/passwd",
        "/static//etc/passwd",
        "/static/%2e%2e/settings.py",
        "/static/..\\settings.py",
        "/static/openjev_site/pages.css\x00.png",
        "/static/" + "a" * 5000,
    ],
)
async def test_nothing_else_is_served(app: StaticFiles, path: str) -> None:
    reply = await get(app, path)
    assert reply.status == 404
    assert reply.headers["content-type"] == "application/json"
    assert reply.json["error"]["type"] == "api_usage_error"


async def test_head_has_no_body_but_its_length(app: StaticFiles) -> None:
    reply = await get(app, STYLE, "HEAD")
    assert reply.status == 200
    assert int(reply.headers["content-length"]) == (SOURCE / "pages.css").stat().st_size


async def test_other_methods_are_405(app: StaticFiles) -> None:
    reply = await get(app, STYLE, "POST")
    assert reply.status == 405
    assert reply.headers["allow"] == "GET, HEAD"
    assert "GET or HEAD" in reply.json["error"]["message"]


async def test_other_paths_go_on(app: StaticFiles, echo: Echo) -> None:
    for path in ("/", "/v1/systemone", "/staticfile"):
        await get(app, path)
        assert echo.scope["path"] == path


def test_an_unknown_name_has_no_version() -> None:
    with pytest.raises(Http404):
        versioned("openjev_site/none.css")
