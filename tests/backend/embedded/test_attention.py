"""How rows are divided, and attention against its definition."""

import numpy as np
import pytest

from backend.embedded.attention import Plan, Span, attend, plan_attention
from backend.embedded.threads import ComputePool

KEY_HEADS, HEADS_PER_KEY, SIZE = 2, 4, 8


def plan(lengths: list[int], threads: int = 1) -> Plan:
    return plan_attention(
        lengths, heads_per_key=HEADS_PER_KEY, key_heads=KEY_HEADS, threads=threads
    )


def rows_of(plan: Plan) -> list[int]:
    return [row for block in plan.blocks for span in block for row in range(span.start, span.stop)]


def test_short_branches_share_a_block() -> None:
    assert plan([2, 3]).blocks == ((Span(0, 0, 2), Span(2, 2, 5)),)


def test_long_branch_is_cut_and_remembers_its_beginning() -> None:
    assert plan([1, 200]).blocks == (
        (Span(0, 0, 1), Span(1, 1, 128)),
        (Span(1, 128, 201),),
    )


@pytest.mark.parametrize("lengths", [[1], [128], [129], [5] * 100, [300, 1, 128]])
def test_blocks_cover_every_row_once(lengths: list[int]) -> None:
    cut = plan(lengths)
    assert rows_of(cut) == list(range(sum(lengths)))
    assert all(block[-1].stop - block[0].start <= 128 for block in cut.blocks)


@pytest.mark.parametrize(("lengths", "threads"), [([60], 8), ([30, 31], 16), ([1], 4)])
def test_few_rows_still_give_every_thread_a_job(lengths: list[int], threads: int) -> None:
    cut = plan(lengths, threads)
    assert rows_of(cut) == list(range(sum(lengths)))
    assert len(cut.blocks) * KEY_HEADS >= min(threads, sum(lengths) * KEY_HEADS)


@pytest.mark.parametrize("past_length", [0, 1, 700, 2500])
@pytest.mark.parametrize("lengths", [[1], [200], [3, 1, 150, 20]])
def test_rows_see_the_past_and_their_own_branch_causally(
    pool: ComputePool, past_length: int, lengths: list[int]
) -> None:
    generator = np.random.default_rng(past_length)
    rows = sum(lengths)

    def numbers(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape, np.float32)

    # scores of a hundred and more, as biased keys cause: exp of them is no float32
    queries = 20 * numbers(rows, KEY_HEADS * HEADS_PER_KEY, SIZE)
    own = numbers(KEY_HEADS, rows, SIZE), numbers(KEY_HEADS, rows, SIZE)
    past = numbers(KEY_HEADS, past_length, SIZE), numbers(KEY_HEADS, past_length, SIZE)
    actual = attend(pool, queries, own, past, plan(lengths, threads=2))
    branches = np.repeat(np.arange(len(lengths)), lengths)
    sees = (branches[:, None] == branches) & (np.arange(rows) <= np.arange(rows)[:, None])
    visible = np.hstack([np.ones((rows, past_length), bool), sees])
    for head in range(KEY_HEADS * HEADS_PER_KEY):
        keys, values = (
            np.vstack([before[head // HEADS_PER_KEY], mine[head // HEADS_PER_KEY]]).astype(float)
            for before, mine in zip(past, own, strict=True)
        )
        scores = np.where(visible, queries[:, head].astype(float) @ keys.T, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        expected = weights / weights.sum(axis=1, keepdims=True) @ values
        columns = slice(head * SIZE, (head + 1) * SIZE)
        np.testing.assert_allclose(actual[:, columns], expected, atol=2e-4)
