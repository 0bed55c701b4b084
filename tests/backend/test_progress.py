"""What a person who waits for the start is told."""

import asyncio

import pytest

from backend import progress
from backend.engine_log import Phase
from backend.progress import StartProgress


@pytest.fixture
async def told():
    """Everything said, with an event per line."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    start = StartProgress(lines.put_nowait, Phase.STARTING)
    telling = asyncio.create_task(start.tell())
    yield start, lines
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)


async def next_line(lines):
    async with asyncio.timeout(5):
        return await lines.get()


async def test_a_new_phase_is_told_at_once(told):
    start, lines = told
    assert await next_line(lines) == "Start   starting the engine (0 s)"
    start.heard("Multi-thread loading shards:   0% Completed")
    assert await next_line(lines) == "Start   loading the weights (0 s)"
    assert start.phase is Phase.LOADING


async def test_sglang_downloads_before_it_loads(told):
    start, lines = told
    await next_line(lines)
    start.heard("Load weight begin. avail mem=21.49 GB")
    start.heard("Using model weights format ['*.safetensors']")
    assert await next_line(lines) == "Start   downloading the weights (0 s)"
    start.heard("Multi-thread loading shards:   0% Completed")
    assert await next_line(lines) == "Start   loading the weights (0 s)"


async def test_a_phase_that_is_over_does_not_come_again(told):
    start, lines = told
    await next_line(lines)
    start.heard("Capture decode CUDA graph begin.")
    start.heard("Multi-thread loading shards:   0% Completed")  # another worker, later
    assert "capturing" in await next_line(lines)
    start.heard("Multi-thread loading shards:   0% Completed")
    start.heard("an ordinary line")
    await asyncio.sleep(0)
    assert lines.empty()
    assert start.phase is Phase.CAPTURING


async def test_a_long_phase_is_told_again(told, monkeypatch):
    start, lines = told
    await next_line(lines)
    monkeypatch.setattr(progress, "_REPEAT_SECONDS", 0.01)
    start.heard("Multi-thread loading shards:   0% Completed")
    assert await next_line(lines) == await next_line(lines) == "Start   loading the weights (0 s)"


async def test_seconds_count_from_the_making(told):
    start, _ = told
    before = start.seconds
    await asyncio.sleep(0.01)
    assert 0 <= before < start.seconds < 5
