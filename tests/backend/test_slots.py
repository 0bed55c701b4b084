"""Places for calls: as many as there are, in order, and none lost."""

from functools import partial

from backend.slots import Slots


def test_as_many_as_there_are_are_taken_at_once():
    slots, served = Slots(2), []
    for name in "abc":
        slots.ask(partial(served.append, name))
    assert served == ["a", "b"]
    slots.give_back()
    assert served == ["a", "b", "c"]


def test_places_are_given_in_the_order_of_asking_and_to_newcomers_last():
    slots, served = Slots(1), []
    for name in "abc":
        slots.ask(partial(served.append, name))
    slots.give_back()
    slots.ask(partial(served.append, "d"))
    assert served == ["a", "b"]
    slots.give_back()
    slots.give_back()
    assert served == ["a", "b", "c", "d"]


def test_who_gives_up_takes_no_place_away():
    slots, served = Slots(1), []
    first, second, third = (partial(served.append, name) for name in "abc")
    for begin in (first, second, third):
        slots.ask(begin)
    slots.withdraw(second)
    slots.withdraw(first)  # has its place already
    slots.give_back()
    assert served == ["a", "c"]
    slots.give_back()
    slots.ask(first)
    slots.ask(second)
    assert served == ["a", "c", "a"]
