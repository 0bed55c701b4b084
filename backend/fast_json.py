"""JSON as the standard library has it, read and written by `orjson` where that is installed.

`orjson` takes a third to a tenth of the time. Before it is used, both read and write the same few
hundred values, and a single difference rules it out; whatever it refuses, the standard library is
asked about, so that its word counts. Knows no messages.
"""

import json
import logging
import random
import struct
from collections.abc import Iterator
from types import ModuleType
from typing import Any

logger = logging.getLogger(__name__)

PROBES = 500
_SEED = 20261130
_CHARACTERS = [*map(chr, range(0x3000)), "你", "🙂"]
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def loads(data: bytes) -> Any:
    """Read JSON in UTF-8; integers beyond 64 bits may come as floats.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    if _orjson is not None:
        try:
            return _orjson.loads(data)
        except ValueError:
            pass  # NaN, for one, which the standard library takes
    return json.loads(data)


def dumps(value: Any) -> bytes:
    """Write JSON in UTF-8, without spaces; numbers are not rounded.

    Args:
        value: of what JSON knows. (`orjson` also writes dates, dataclasses and the like.)

    Raises:
        ValueError: it holds a number that is not finite, or half of a surrogate pair.
        TypeError: it holds something that cannot be written.
        RecursionError: it is nested too deeply.
    """
    if _orjson is not None:
        try:
            written: bytes = _orjson.dumps(value)
        except TypeError:
            pass  # an integer of more than 64 bits, for one
        else:
            if b"null" not in written:  # which it also writes for a number that is not finite
                return written
    return _ENCODER.encode(value).encode()


def probe_values() -> list[Any]:
    """Make the values on which both have to agree; the same ones every time."""
    return list(_values(random.Random(_SEED)))  # noqa: S311 - only variety is asked of it


def _values(chance: random.Random) -> Iterator[Any]:
    for number in range(PROBES):
        (any_float,) = struct.unpack("d", chance.randbytes(8))
        real = any_float if any_float - any_float == 0 else 0.1  # neither infinite nor NaN
        text = "".join(chance.choices(_CHARACTERS, k=8))
        yield {
            "nested": [[real, chance.random(), -chance.random() * 10 ** chance.randint(-9, 9)]],
            "integers": [number, -chance.getrandbits(62), chance.getrandbits(63)],
            text: text,
            "rest": [True, False, None, {}, []],
        }


def agreeing_orjson() -> ModuleType | None:
    """Find `orjson`; `None` where it is not installed, or differs from the standard library."""
    try:
        import orjson
    except ImportError:
        return None
    try:
        agrees = all(_agrees(orjson, value) for value in probe_values())
    except Exception:  # another implementation may fail in any way
        agrees = False
    if not agrees:
        logger.warning("orjson does not read and write JSON as Python does; not used.")
        return None
    return orjson


def _agrees(other: ModuleType, value: Any) -> bool:
    read = (other.loads(json.dumps(value)), json.loads(other.dumps(value)))
    # compared as text, where 1 and 1.0 and True are not the same
    return all(repr(found) == repr(value) for found in read)


_orjson = agreeing_orjson()
