"""Who gets in: with a key configured only its owner, without one everybody."""

import pytest
from django.test import AsyncClient

from tests.evaluations.conftest import Configure
from tests.evaluations.stand_in import StandInRuntime

KEY = "k-123"
GUARDED = ["/v1/models", "/v1/models/jev-latest", "/v1/limits", "/v1/nope"]
OPEN = ["/health", "/health/live", "/openapi.json"]


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", f"Bearer {KEY}x", f"Basic {KEY}", KEY, "Bearer schlüssel"],
)
@pytest.mark.parametrize("path", ["/v1/systemone", *GUARDED])
async def test_wrong_or_missing_key_is_a_401(
    api: AsyncClient,
    runtime: StandInRuntime,
    configure: Configure,
    path: str,
    header: str | None,
) -> None:
    configure(api_key=KEY)
    headers = {} if header is None else {"Authorization": header}
    response = await api.post(path, "{}", content_type="application/json", headers=headers)
    assert response.status_code == 401
    assert response["WWW-Authenticate"] == "Bearer"
    body = response.json()
    assert body["detail"]["error_type"] == body["error"]["type"] == "authentication_error"
    assert KEY not in response.content.decode()


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_right_key_gets_in(api: AsyncClient, configure: Configure, scheme: str) -> None:
    configure(api_key=KEY)
    for path in GUARDED:
        response = await api.get(path, headers={"Authorization": f"{scheme} {KEY}"})
        assert response.status_code == (404 if path == "/v1/nope" else 200)


@pytest.mark.parametrize("path", OPEN)
async def test_health_and_description_stay_open(
    api: AsyncClient, configure: Configure, path: str
) -> None:
    configure(api_key=KEY)
    assert (await api.get(path)).status_code == 200


@pytest.mark.parametrize("header", ["Bearer anything", "Basic eDp5", "nonsense"])
async def test_any_header_is_ignored_without_a_key(api: AsyncClient, header: str) -> None:
    response = await api.get("/v1/models", headers={"Authorization": header})
    assert response.status_code == 200
