"""The pages as they are sent, before any browser."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.contrib.staticfiles import finders
from django.http import HttpResponse
from django.test import Client

from openjev_site import scalar
from openjev_site.scalar import ScalarFinder

ADDRESS = re.compile(r"""(?:src|href)=["']([^"']+)""")


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture(autouse=True)
def fresh_bundle() -> object:
    scalar.bundle.cache_clear()
    yield
    scalar.bundle.cache_clear()


def policy(response: HttpResponse) -> dict[str, list[str]]:
    directives = response["Content-Security-Policy"].split(";")
    return {name: values for name, *values in (directive.split() for directive in directives)}


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_name_no_other_host(client: Client, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 200
    assert response["Content-Type"] == "text/html; charset=utf-8"
    text = response.content.decode()
    assert 'data-document="/openapi.json"' in text
    addresses = ADDRESS.findall(text)
    assert len(addresses) >= 8
    assert all(address.startswith("/") for address in addresses)
    assert not re.search(r"<script>|<style>|\son\w+=", text), "inline code"


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_the_policy_allows_this_host_only(client: Client, path: str) -> None:
    allowed = policy(client.get(path))
    assert allowed["default-src"] == ["'none'"]
    assert allowed["script-src"] == ["'self'"]
    assert allowed["connect-src"] == ["'self'"]
    assert allowed["frame-ancestors"] == ["'none'"]
    assert not any("http" in value for values in allowed.values() for value in values)


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_every_file_of_a_page_is_there_under_its_fingerprint(client: Client, path: str) -> None:
    text = client.get(path).content.decode()
    files = [address for address in ADDRESS.findall(text) if address.startswith("/static/")]
    assert files
    for address in files:
        name, _, version = address.removeprefix("/static/").partition("?v=")
        assert finders.find(name), name
        assert re.fullmatch(r"[0-9a-f]{16}", version)


@pytest.mark.parametrize("path", ["/", "/docs", "/favicon.ico"])
def test_pages_are_only_read(client: Client, path: str) -> None:
    response = client.post(path)
    assert response.status_code == 405
    assert response["Allow"] == "GET, HEAD"
    assert response.json()["detail"]["error_type"] == "api_usage_error"
    assert client.head(path).status_code in {200, 302}


def test_the_old_favicon_address_leads_to_the_icon(client: Client) -> None:
    response = client.get("/favicon.ico")
    assert response.status_code == 302
    assert response["Location"].startswith("/static/openjev_site/favicon.svg?v=")


def test_the_bundle_is_the_published_one() -> None:
    found = scalar.bundle()
    assert found is not None, "install it: pip install --no-deps -r requirements-pages.txt"
    assert finders.find(scalar.STATIC_NAME) == str(found)
    assert finders.find(scalar.STATIC_NAME, find_all=True) == [str(found)]
    assert ScalarFinder().check() == []
    ((name, storage),) = ScalarFinder().list(None)
    assert f"{storage.prefix}/{name}" == scalar.STATIC_NAME  # type: ignore[attr-defined]
    assert storage.size(name) == found.stat().st_size


def test_the_pinned_requirement_is_the_version_served() -> None:
    pinned = (Path(__file__).parents[2] / "requirements-pages.txt").read_text()
    assert f"\n{scalar.CARRIER}=={scalar.VERSION}\n" in pinned


def absent(_name: str) -> None:
    raise scalar.metadata.PackageNotFoundError


def test_without_the_bundle_the_page_names_the_cdn_and_its_digest(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scalar.metadata, "files", absent)
    response = client.get("/")
    text = response.content.decode()
    assert f'src="{scalar.CDN_URL}"' in text
    assert f'integrity="{scalar.INTEGRITY}" crossorigin="anonymous"' in text
    assert scalar.VERSION in scalar.CDN_URL
    assert policy(response)["script-src"] == ["'self'", scalar.CDN_ORIGIN]
    assert finders.find(scalar.STATIC_NAME) is None
    assert ScalarFinder().find(scalar.STATIC_NAME, find_all=True) == []
    assert list(ScalarFinder().list(None)) == []


def test_another_bundle_than_the_published_one_is_not_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "scalar.standalone.js"
    other.write_text("alert(1)")
    file = SimpleNamespace(locate=lambda: other)
    monkeypatch.setattr(scalar.metadata, "files", lambda _name: [file])
    assert scalar.bundle() is None
    assert "holds another bundle" in caplog.text


def test_a_carrier_without_a_record_of_its_files_is_no_carrier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scalar.metadata, "files", lambda _name: None)
    assert scalar.bundle() is None
