"""Shorter waits, so that faults which last are told soon."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from evaluations import runtime, start
from tests.faults.outcomes import assert_discreet
from tests.faults.product import Product, serve

Serve = Callable[..., AbstractAsyncContextManager[Product]]

HEALTH_SECONDS = 0.5


@pytest.fixture
def served(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Serve]:
    """Start the application on a fake engine; its log must be as discreet as its answers."""
    monkeypatch.setattr(runtime, "HEALTH_SECONDS", HEALTH_SECONDS)
    monkeypatch.setattr(runtime, "HEALTH_MAX_AGE", -1.0)  # every question is passed on
    for module in (runtime, start):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.5)
    for name in ("_RETRY_SECONDS", "_RETRY_REFUSED_SECONDS"):
        monkeypatch.setattr(start, name, 0.02)
    caplog.set_level(logging.INFO)
    yield partial(serve, tiny_gguf)
    assert_discreet(caplog.text)
