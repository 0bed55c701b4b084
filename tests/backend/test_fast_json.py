"""JSON comes and goes as the standard library has it, with and without `orjson`."""

import json
import math
import sys
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend import fast_json
from backend.fast_json import dumps, loads, probe_values

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    # a lone surrogate has no UTF-8
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abé"), inner),
    max_leaves=8,
)


@pytest.fixture(params=["orjson", "the standard library"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(fast_json, "_orjson", orjson if request.param == "orjson" else None)
    return str(request.param)


@given(value=values)
def test_what_is_written_is_what_is_read(value: Any) -> None:
    for module in (orjson, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fast_json, "_orjson", module)
            written = dumps(value)
            assert repr(loads(written)) == repr(json.loads(written)) == repr(value)


@pytest.mark.usefixtures("implementation")
def test_there_are_no_spaces_and_no_escapes() -> None:
    assert dumps({"a": [1, "é"]}) == '{"a":[1,"é"]}'.encode()


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_number_becomes_null(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps({"a": [number]})
    assert dumps([None, 0.5]) == b"[null,0.5]"


@pytest.mark.usefixtures("implementation")
def test_integers_of_any_length_are_written() -> None:
    assert dumps([2**70]) == b"[1180591620717411303424]"


@pytest.mark.usefixtures("implementation")
def test_what_the_standard_library_reads_is_read() -> None:
    assert math.isnan(loads(b'{"a": NaN}')["a"])


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("data", [b"", b"{", b"[1,]", b'"\xff"'])
def test_what_is_not_json_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        loads(data)


@pytest.mark.usefixtures("implementation")
def test_half_of_a_surrogate_pair_has_no_utf8() -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        dumps({"a": "\ud800"})


@pytest.mark.usefixtures("implementation")
def test_what_json_does_not_know_is_an_error() -> None:
    with pytest.raises(TypeError):
        dumps({"a": object()})


def test_one_that_agrees_is_used() -> None:
    assert fast_json.agreeing_orjson() is orjson


def test_without_it_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "orjson", None)
    assert fast_json.agreeing_orjson() is None


@pytest.mark.parametrize("wrong", ["loads", "dumps"])
def test_one_that_differs_once_is_not_used(
    wrong: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    odd = probe_values()[-1]
    functions: dict[str, Any] = {"loads": orjson.loads, "dumps": orjson.dumps}
    if wrong == "loads":
        functions["loads"] = lambda text: {} if json.loads(text) == odd else orjson.loads(text)
    else:
        functions["dumps"] = lambda value: b"{}" if value == odd else orjson.dumps(value)
    monkeypatch.setitem(sys.modules, "orjson", SimpleNamespace(**functions))
    assert fast_json.agreeing_orjson() is None
    assert "orjson does not read and write JSON as Python does; not used." in caplog.text


def test_one_that_fails_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "orjson", SimpleNamespace())
    assert fast_json.agreeing_orjson() is None
    assert "not used" in caplog.text
