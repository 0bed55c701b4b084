"""Silence, told by looks into a counter."""

import asyncio
import time

import pytest

from backend.serving.heartbeat import beating, pause_for, wait_for_silence

PAUSE = 0.05


def test_a_short_silence_needs_several_looks_and_a_long_one_no_more_than_are_of_use():
    assert pause_for(1) == 0.25
    assert pause_for(60) == pause_for(86_400) == 5.0


async def test_it_beats_while_the_work_lasts_and_not_after():
    counts = [3, 0]

    async def work():
        while counts[1] < 3:  # noqa: ASYNC110 - that is what it shows
            await asyncio.sleep(0)
        return "done"

    async with asyncio.timeout(5):
        assert await beating(work(), counts, 1, 0.001) == "done"
    assert counts[0] == 3
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_work_that_fails_ends_the_beats():
    async def work():
        raise OSError

    with pytest.raises(OSError):
        await beating(work(), [0], 0, 0.001)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_count_that_stands_still_is_silence():
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with asyncio.timeout(5):
        await wait_for_silence([5], 0, PAUSE, lambda: 4 * PAUSE)
    assert loop.time() - begun >= 4 * PAUSE


async def test_a_count_that_changes_is_none(monkeypatch):
    counts, looks = [0], 0

    async def look(_):
        nonlocal looks
        looks += 1
        counts[0] += looks % 3 == 0 and looks < 30  # every third look sees another

    monkeypatch.setattr(asyncio, "sleep", look)
    await wait_for_silence(counts, 0, PAUSE, lambda: 4 * PAUSE)
    assert looks == 27 + 4


async def test_the_time_in_which_nobody_could_look_is_none():
    limit = 4 * PAUSE
    watching = asyncio.create_task(wait_for_silence([5], 0, PAUSE, lambda: limit))
    await asyncio.sleep(0)
    time.sleep(2 * limit)  # noqa: ASYNC251 - as where the watcher is stopped, or the machine sleeps
    await asyncio.sleep(PAUSE / 2)
    assert not watching.done()
    async with asyncio.timeout(5):
        await watching


async def test_the_limit_may_change_meanwhile(monkeypatch):
    limits = iter([100.0, 100.0, 100.0, 1.0])

    async def look(_):
        pass

    monkeypatch.setattr(asyncio, "sleep", look)
    await wait_for_silence([5], 0, 1.0, lambda: next(limits))
