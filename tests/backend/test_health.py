"""Waiting for `/health`."""

import asyncio

from backend import health
from backend.health import wait_until_healthy


async def test_it_waits_until_the_answer_is_200(fake_engine, monkeypatch):
    monkeypatch.setattr(health, "_FIRST_PAUSE_SECONDS", 0.01)
    fake_engine.healthy = False
    waiting = asyncio.create_task(wait_until_healthy(fake_engine.url, seconds=10))
    await fake_engine.wait_for(lambda engine: len(engine.requests) >= 3)
    assert not waiting.done()
    fake_engine.healthy = True
    assert await waiting


async def test_it_gives_up_when_time_is_over(fake_engine):
    fake_engine.health_delay = 30
    assert not await wait_until_healthy(fake_engine.url, seconds=0.05)


async def test_nobody_listening_is_not_healthy_yet():
    assert not await wait_until_healthy("http://127.0.0.1:9", seconds=0.05)
