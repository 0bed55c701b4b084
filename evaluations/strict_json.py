"""Strict JSON: what a request body, or a text inside one, may be.

Refused as a 422, wherever they stand: text that is not JSON or not UTF-8, NaN and Infinity (also
`1e999`), lone surrogates, a key that an object repeats (one of the two would be lost without a
word, in the state as anywhere), nesting beyond `MAX_NESTING`, more than `MAX_VALUES` values. Pure;
nothing here knows HTTP or the fields of a request.
"""

import json
import math
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any

from evaluations.exceptions import Fault, InvalidRequest
from evaluations.quoting import shortened

MAX_NESTING = 128
"""Arrays and objects inside each other. Far below Python's recursion limit, which the reader, the
writers and the chat template of any later stage share with the server's own stack."""

MAX_VALUES = 65_536
"""Values in one body, a member of an object being one. Most cost a token at least, so that more
would not fit anyway; just reading them and writing them out would keep the event loop waiting."""

_MAX_NAMED = 20
# An empty container, a bracket, a comma, or a string, in which none of these counts: whole, or what
# is left of one that never ends, so that no character is looked at twice.
_STRUCTURE = re.compile(
    rb'[\[{]\s*+[\]}]|[\[{\]},]|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL
)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")

Path = tuple[str | int, ...]


class _Repeating(dict[str, Any]):
    """An object of the body that has a key twice."""

    repeated: str


def parse_json(body: bytes) -> Any:
    """Read a body strictly.

    Args:
        body: the whole body, decompressed.

    Returns:
        Plain JSON values: finite numbers, well-formed text, keys that stand once.

    Raises:
        InvalidRequest: with every place that is wrong, or the first where reading stops.
    """
    if not body.strip():
        raise _malformed("The request body is empty. Send a JSON object.")
    _check_structure(body)
    try:
        text = body.removeprefix(BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise _malformed(
            f"The body is not valid UTF-8: byte {error.start} cannot be decoded."
        ) from None
    return _Reader().read(text)


class _Reader:
    """Reads one text; remembers whether anything made a closer look necessary."""

    def __init__(self) -> None:
        self._suspect = False

    def read(self, text: str) -> Any:
        try:
            value = json.loads(
                text,
                object_pairs_hook=self._object,
                parse_float=self._float,
                parse_constant=self._float,
            )
        except json.JSONDecodeError as error:
            # some of them end with what is to follow
            what = error.msg.removesuffix(" at").rstrip(": ")
            raise _malformed(
                f"The body is not valid JSON: {what} at line {error.lineno}, column {error.colno}."
            ) from None
        except ValueError:  # Python refuses to read whole numbers beyond some thousand digits
            raise _malformed("The body holds a number with too many digits.") from None
        if self._suspect or _SURROGATE_ESCAPE.search(text):
            faults = list(_faults_within(value))
            if faults:
                raise InvalidRequest(faults)
        return value

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) == len(pairs):
            return value
        self._suspect = True
        seen: set[str] = set()
        repeating = _Repeating(value)
        repeating.repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return repeating

    def _float(self, digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            self._suspect = True
        return number


def _check_structure(body: bytes) -> None:
    """Refuse what nests too deep or holds too many values, before anything is built from it.

    A loop in Python rather than one call into C: it stops as soon as it has seen too much, and
    other threads, the event loop's among them, get their turn meanwhile.
    """
    if sum(map(body.count, (b"[", b"{", b","))) <= MAX_NESTING:
        return
    depth = 0
    values = 1
    for found in _STRUCTURE.finditer(body):
        mark = found[0]
        if mark[0] in b"[{":
            if depth == MAX_NESTING:
                raise _malformed(
                    f"The body nests arrays and objects more than {MAX_NESTING} deep.", "too_deep"
                )
            is_empty = len(mark) > 1
            depth += not is_empty
            values += not is_empty
        elif mark[0] in b"]}":
            depth -= 1
        elif mark == b",":
            values += 1
        if values > MAX_VALUES:
            raise _malformed(
                f"The body holds more than {MAX_VALUES} values. Send fewer, or write structured "
                "content as text.",
                "too_many_values",
            )


def _faults_within(root: Any) -> Iterator[Fault]:
    """Find the first places at which `root` is not what a request may hold."""
    waiting: list[tuple[Path, Any]] = [((), root)]
    left = _MAX_NAMED
    while waiting and left:
        path, value = waiting.pop()
        for fault in _faults_at(path, value):
            yield fault
            left -= 1
        if isinstance(value, dict):
            waiting += (((*path, key), item) for key, item in reversed(value.items()))
        elif isinstance(value, list):
            waiting += (((*path, index), value[index]) for index in reversed(range(len(value))))


def _faults_at(path: Path, value: Any) -> Iterator[Fault]:
    where = _named(path)
    loc = tuple(_printable(part) for part in path)
    if isinstance(value, _Repeating):
        key = _printable(value.repeated)
        message = f"{where} repeats the key {key!r}. A key may stand only once in an object."
        yield Fault("repeated_key", (*loc, key), message)
    elif isinstance(value, float) and not math.isfinite(value):
        yield Fault("not_finite", loc, f"{where} is not a finite number, which JSON requires.")
    elif isinstance(value, str) and _SURROGATE.search(value):
        yield Fault("lone_surrogate", loc, f"{where} holds half of a surrogate pair.")
    if path and isinstance(path[-1], str) and _SURROGATE.search(path[-1]):
        yield Fault("lone_surrogate", loc, f"The key of {where} holds half of a surrogate pair.")


def _named(path: Path) -> str:
    return "`" + ".".join(str(_printable(part)) for part in path) + "`" if path else "The body"


def _printable(part: str | int) -> str | int:
    """Make a key fit for an answer: short, and free of lone surrogates."""
    if isinstance(part, int):
        return part
    return str(shortened(part)).encode("utf-8", "backslashreplace").decode()


def _malformed(message: str, kind: str = "json_invalid") -> InvalidRequest:
    return InvalidRequest([Fault(kind, (), message)])
