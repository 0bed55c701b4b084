"""The API in-process on a runtime that answers at once, and the core on a tiny vocabulary."""

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.http import HttpResponse
from django.test import AsyncClient

from backend.config import Config, load_config
from backend.tokenizer import ChatTokenizer
from backend.vocabulary import vocabulary_from_gguf
from evaluations.answer_forms import candidates, choose_readout
from evaluations.readout import Readout
from tests.evaluations.stand_in import StandInRuntime
from tests.support.stand_in import StandIn

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


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_gguf: Path) -> ChatTokenizer:
    """The tokenizer of the tiny random model."""
    return ChatTokenizer(vocabulary_from_gguf(tiny_gguf))


@pytest.fixture
def config() -> Config:
    """The defaults, for an engine that serves the tiny random model."""
    config, problems = load_config({})
    assert not problems
    return dataclasses.replace(config, served_model_name="tiny/random")


@pytest.fixture(scope="session")
def readout(tiny_tokenizer: ChatTokenizer) -> Readout:
    """A verified readout of the tiny vocabulary."""
    config, _ = load_config({})
    found = candidates(tiny_tokenizer, count=config.max_answers)
    return asyncio.run(choose_readout(found, tiny_tokenizer, StandIn(), config, deadline=1e9))
