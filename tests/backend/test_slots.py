"""Places for calls: as many as there are, in order, and none lost."""

import asyncio

from backend.slots import Slots


async def test_as_many_as_there_are_are_taken_at_once():
    slots = Slots(2)
    assert [slots.take_at_once() for _ in range(3)] == [True, True, False]
    slots.give_back()
    assert slots.take_at_once()


async def test_who_waits_gets_a_place_in_the_order_of_asking_and_before_newcomers():
    slots, served = Slots(1), []

    async def wait(name):
        await slots.take()
        served.append(name)

    await wait("first")
    waiting = [asyncio.create_task(wait(name)) for name in ("second", "third")]
    await asyncio.sleep(0)
    for name in ("second", "third"):
        slots.give_back()
        assert not slots.take_at_once()
        await asyncio.sleep(0)
        assert served[-1] == name
    await asyncio.gather(*waiting)


async def test_who_gives_up_takes_no_place_away():
    slots = Slots(1)
    await slots.take()
    for gives_up_after_its_turn in (False, True):
        waiting = asyncio.create_task(slots.take())
        await asyncio.sleep(0)
        if gives_up_after_its_turn:
            slots.give_back()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        if not gives_up_after_its_turn:
            slots.give_back()
        assert slots.take_at_once()
        assert not slots.take_at_once()
