"""The API in-process, on a runtime that answers at once."""

import dataclasses
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from django.conf import LazySettings
from django.http import HttpResponse
from django.test import AsyncClient

from tests.evaluations.stand_in import StandInRuntime

Post = Callable[..., Awaitable[HttpResponse]]
Configure = Callable[..., None]


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> StandInRuntime:
    """The runtime behind the views."""
    stand_in = StandInRuntime()
    monkeypatch.setattr("evaluations.views.get_runtime", lambda: stand_in)
    return stand_in


@pytest.fixture
def api(runtime: StandInRuntime) -> AsyncClient:
    """A client that sees a 500 as a 500."""
    return AsyncClient(raise_request_exception=False)


@pytest.fixture
def post(api: AsyncClient) -> Post:
    """Post an evaluation: bytes as they are, anything else as JSON."""

    async def send(body: Any, **kwargs: Any) -> HttpResponse:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        kwargs.setdefault("content_type", "application/json")
        response: Any = await api.post("/v1/systemone", content, **kwargs)
        return response

    return send


@pytest.fixture
def configure(settings: LazySettings) -> Configure:
    """Change `OPENJEV_*` settings for one test, by their names in `Config`."""

    def change(**values: Any) -> None:
        settings.OPENJEV = dataclasses.replace(settings.OPENJEV, **values)

    return change
