"""Waiting until an engine works, and until it does not."""

import asyncio
from dataclasses import replace

import pytest

from backend import health
from backend.config import load_config
from backend.errors import EngineMismatch
from backend.health import (
    wait_until_healthy,
    wait_until_serving,
    wait_until_silent,
    why_not_serving,
)
from tests.support.fake_engine import Fault


@pytest.fixture
def config(fake_engine):
    return replace(
        load_config({})[0],
        backend_url=fake_engine.url,
        served_model_name=fake_engine.model,
        max_input_tokens=fake_engine.context_length - 10,
    )


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


async def test_serving_needs_a_real_answer_besides_health(fake_engine, config):
    fake_engine.play(Fault.QUEUE_FULL)
    waiting = asyncio.create_task(wait_until_serving(config, seconds=10))
    await fake_engine.wait_for(lambda engine: len(engine.calls) >= 2)
    assert not waiting.done()
    fake_engine.play(Fault.NONE)
    assert await waiting


async def test_an_engine_that_never_answers_is_not_serving(fake_engine, config):
    fake_engine.play(Fault.HANG)
    assert not await wait_until_serving(config, seconds=0.2)


async def test_why_it_does_not_serve_is_told_with_its_address(fake_engine, config):
    async def why(**changes):
        return await why_not_serving(replace(config, **changes))

    assert await why() == f"The engine at {fake_engine.url} answers."
    assert await why(backend_url="http://127.0.0.1:9") == (
        "Asked once more at http://127.0.0.1:9: The engine cannot be reached."
    )
    assert f"The engine at {fake_engine.url} serves" in await why(served_model_name="other")


async def test_serving_is_asked_with_the_engines_key(fake_engine, config):
    fake_engine.api_key = "secret"
    assert await wait_until_serving(replace(config, backend_api_key="secret"), seconds=10)


@pytest.mark.parametrize(
    ("changes", "fault", "said"),
    [
        ({"served_model_name": "other/model"}, Fault.NONE, "serves 'fake/model'"),
        ({"max_input_tokens": 100_000}, Fault.NONE, "OPENJEV_MAX_INPUT_TOKENS is 100000"),
        ({}, Fault.NAN, "cannot be used"),
        ({}, Fault.UNAUTHORISED, "cannot be used"),
    ],
)
async def test_what_can_never_serve_is_not_waited_for(fake_engine, config, changes, fault, said):
    fake_engine.play(fault)
    with pytest.raises(EngineMismatch, match=said):
        await wait_until_serving(replace(config, **changes), seconds=10)


async def test_an_engine_that_answers_is_not_silent(fake_engine, config):
    watching = asyncio.create_task(wait_until_silent(config, seconds=0.4))
    await fake_engine.wait_for(lambda engine: len(engine.requests) >= 8)
    assert not watching.done()
    fake_engine.healthy = False
    async with asyncio.timeout(10):
        await watching


async def test_an_engine_that_answers_late_is_not_silent(fake_engine, config):
    fake_engine.health_delay = 0.3
    watching = asyncio.create_task(wait_until_silent(config, seconds=1.0))
    await fake_engine.wait_for(lambda engine: len(engine.requests) >= 4)
    assert not watching.done()
    watching.cancel()


async def test_an_engine_that_hangs_is_silent_after_two_questions(fake_engine, config):
    fake_engine.health_delay = 30
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(10):
        await wait_until_silent(config, seconds=0.4)
    assert 0.4 <= loop.time() - began < 2
    assert fake_engine.requests == ["GET /server_info"] * 2


async def test_silence_is_watched_for_with_the_engines_key(fake_engine, config):
    fake_engine.api_key = "secret"
    config = replace(config, backend_api_key="secret")
    watching = asyncio.create_task(wait_until_silent(config, seconds=0.4))
    await fake_engine.wait_for(lambda engine: len(engine.requests) >= 4)
    assert not watching.done()
    watching.cancel()
