"""From the text of a variable or an option to its value: one small reader for each kind.

Each raises `ValueError`, and nothing else, for text it cannot take; which setting that was, and
what to tell the user, is for whoever asked to say. Nothing here reads the environment.
"""

import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit


def integer(low: int, high: int) -> Callable[[str], int]:
    """A reader of whole numbers from `low` to `high`."""

    def parse(given: str) -> int:
        value = int(given)
        if not low <= value <= high:
            raise ValueError
        return value

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """A reader of numbers from `low` to `high`."""

    def parse(given: str) -> float:
        value = float(given)
        if not low <= value <= high:  # also refuses NaN
            raise ValueError
        return value

    return parse


def one_of(*names: str) -> Callable[[str], str]:
    """A reader of one of `names`."""

    def parse(given: str) -> str:
        if given not in names:
            raise ValueError
        return given

    return parse


def text(given: str) -> str:
    """Take text that shows something and can be printed on one line."""
    if not given.strip() or not given.isprintable():
        raise ValueError
    return given


def plain_name(given: str) -> str:
    """Take text that a command line does not mistake for an option."""
    if given.startswith("-"):
        raise ValueError
    return text(given)


def header_text(given: str) -> str:
    """Take text that can stand in an HTTP header as it is: printable ASCII without spaces."""
    if not given.isascii() or not given.isprintable() or " " in given or not given:
        raise ValueError
    return given


def http_url(given: str) -> str:
    """Take the base address of a server, and drop its trailing slash.

    Raises:
        ValueError: without an http(s) scheme and a host, or with a user, query, fragment, space,
            bad port, or host that can be no name. (A user would be shown wherever the address is,
            and contradict the API key.)
    """
    parts = urlsplit(text(given))
    if " " in given:
        raise ValueError
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise ValueError
    if parts.query or parts.fragment:
        raise ValueError
    if parts.port == 0:  # raises ValueError for a port that is no number
        raise ValueError
    parts.hostname.encode("idna")  # raises a ValueError where looking the name up would, later
    return given.rstrip("/")


def directory(given: str) -> Path:
    """Take an absolute path that is, or can become, a directory; `~` is the user's home."""
    # os.path, because pathlib raises other errors for homes and places it cannot look into
    path = os.path.expanduser(text(given))
    if not os.path.isabs(path) or (os.path.exists(path) and not os.path.isdir(path)):
        raise ValueError
    return Path(path)
