"""How a refusal quotes what a caller sent: its kind, and never more than a line of it.

Pure; whose value it is and what it should have been is for whoever refuses it.
"""

from typing import Any

SHOWN_CHARACTERS = 80


def shortened(part: Any) -> Any:
    """Cut a text that is too long to be repeated in an answer; leave anything else as it is."""
    if isinstance(part, str) and len(part) > SHOWN_CHARACTERS:
        return part[:SHOWN_CHARACTERS] + "…"
    return part


def found(value: Any) -> str:
    """Name a JSON value in a sentence: its kind, and itself where it is short."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {shortened(str(value))}"
        case str():
            return f"the string {shortened(value)!r}"
        case list():
            return f"an array of {counted(len(value), 'item')}"
        case _:
            return f"an object with {counted(len(value), 'key')}"


def counted(number: int, noun: str) -> str:
    """`1 item`, `2 items`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def echoed(value: Any) -> Any:
    """What a fault's `input` shows of a value; never more than a line of it."""
    if isinstance(value, list | dict) or (isinstance(value, int) and value.bit_length() > 64):
        return found(value)
    return shortened(value)
