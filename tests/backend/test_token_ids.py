"""Token ids that are joined without being written again."""

import json

from hypothesis import given
from hypothesis import strategies as st

from backend.token_ids import TokenIds

id_lists = st.lists(st.integers(0, 2**31))


@given(id_lists)
def test_they_are_the_ids_they_were_made_of(ids):
    tokens = TokenIds.of(ids)
    assert list(tokens) == json.loads(b"[%b]" % tokens.encoded) == ids
    assert len(tokens) == len(ids)
    assert bool(tokens) == bool(ids)


@given(id_lists, id_lists)
def test_a_sum_is_as_if_made_of_both(first, second):
    assert TokenIds.of(first) + TokenIds.of(second) == TokenIds.of(first + second)


@given(st.lists(st.integers(-5, 2**31), min_size=1))
def test_the_highest_id_is_known(ids):
    tokens = TokenIds.of(ids)
    assert tokens.highest == max(ids)
    assert tokens[0] == ids[0]
    assert list(tokens[1:]) == ids[1:]
