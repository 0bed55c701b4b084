"""What is reused, what is kept, and what goes first."""

import numpy as np

from backend.embedded.model import KeyValues
from backend.embedded.prefix_cache import (
    MAX_BRANCH_TOKENS,
    PrefixCache,
    as_ids,
    common_length,
)


def state(tokens: int) -> KeyValues:
    """16 bytes of keys and values a token, to which the ids add 8."""
    return KeyValues(
        np.zeros((1, 1, tokens, 2), np.float32), np.zeros((1, 1, tokens, 2), np.float32)
    )


HIDDEN = np.zeros((1, 0), np.float32)


def filled(*prompts: list[int], limit: int = 10**6) -> PrefixCache:
    cache = PrefixCache(limit)
    for prompt in prompts:
        cache.store(as_ids(prompt), state(len(prompt)), HIDDEN)
    return cache


def test_common_length() -> None:
    assert common_length(as_ids([1, 2, 3]), as_ids([1, 2, 4, 5])) == 2
    assert common_length(as_ids([1, 2]), as_ids([1, 2, 4])) == 2
    assert common_length(as_ids([7]), as_ids([8])) == 0


def test_continuation_of_a_whole_entry_is_a_branch() -> None:
    match = filled([1, 2, 3]).match(as_ids([1, 2, 3, 9]))
    assert (match.tokens, match.is_branch) == (3, True)


def test_repeated_prompt_is_told_from_a_branch() -> None:
    cache = filled([1, 2, 3])
    match = cache.match(as_ids([1, 2, 3]))
    assert (match.tokens, match.is_branch, match.repeats) == (2, True, True)
    assert not cache.match(as_ids([1, 2, 3, 4])).repeats
    assert not cache.match(as_ids([1, 2])).repeats


def test_hidden_state_counts_as_memory() -> None:
    cache = PrefixCache(10**6)
    cache.store(as_ids([1, 2]), state(2), np.zeros((1, 8), np.float32))
    assert cache.nbytes == 2 * 24 + 32


def test_part_of_an_entry_is_reused_but_no_branch() -> None:
    match = filled([1, 2, 3, 4]).match(as_ids([1, 2, 9, 9]))
    assert (match.tokens, match.is_branch) == (2, False)


def test_whole_entry_wins_over_a_longer_part_of_another() -> None:
    cache = filled([1, 2], [1, 2, 3, 4, 5])
    match = cache.match(as_ids([1, 2, 3, 4, 9]))
    assert (match.tokens, match.is_branch) == (2, True)


def test_longest_whole_entry_wins() -> None:
    match = filled([1, 2], [1, 2, 3], [1, 2, 3, 5]).match(as_ids([1, 2, 3, 4]))
    assert match.tokens == 3


def test_very_long_continuation_is_a_prompt_of_its_own() -> None:
    cache = filled([1, 2])
    assert cache.match(as_ids([1, 2, *range(MAX_BRANCH_TOKENS)])).is_branch
    assert not cache.match(as_ids([1, 2, *range(MAX_BRANCH_TOKENS + 1)])).is_branch


def test_single_token_reuses_nothing_and_makes_no_branches() -> None:
    assert filled([1, 2]).match(as_ids([1])).entry is None
    assert not filled([1]).match(as_ids([1, 2, 3])).is_branch


def test_least_recently_used_goes_first_and_bytes_are_kept() -> None:
    cache = filled([1] * 10, [2] * 10, [3] * 10, limit=3 * 240)
    assert cache.nbytes == 720
    oldest = cache.match(as_ids([1] * 11)).entry
    assert oldest is not None
    cache.touch(oldest)
    cache.store(as_ids([4] * 10), state(10), HIDDEN)
    assert cache.match(as_ids([1] * 11)).entry is oldest
    assert cache.match(as_ids([2] * 11)).entry is None
    assert (len(cache), cache.nbytes) == (3, 720)
    cache.store(as_ids([5] * 20), state(20), HIDDEN)
    assert (len(cache), cache.nbytes) == (2, 720)


def test_prompt_larger_than_the_cache_evicts_nobody() -> None:
    cache = filled([1] * 10, limit=240)
    cache.store(as_ids([2] * 11), state(11), HIDDEN)
    assert cache.match(as_ids([1] * 11)).entry is not None
    assert len(cache) == 1


def test_zero_bytes_switch_it_off() -> None:
    assert len(filled([1, 2, 3], limit=0)) == 0


def test_same_prompt_is_kept_once() -> None:
    cache = filled([1, 2, 3], [1, 2, 3])
    assert (len(cache), cache.nbytes) == (1, 72)


def test_cleared_cache_is_empty_and_old_entries_may_still_be_touched() -> None:
    cache = filled([1, 2, 3])
    entry = cache.match(as_ids([1, 2, 3, 4])).entry
    assert entry is not None
    cache.clear()
    cache.touch(entry)
    assert (len(cache), cache.nbytes) == (0, 0)
