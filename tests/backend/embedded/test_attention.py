"""How rows are cut into blocks of bounded size."""

import pytest

from backend.embedded.attention import Span, blocks_of


def test_short_branches_share_a_block() -> None:
    assert blocks_of([2, 3], 4) == [(Span(0, 0, 2), Span(2, 2, 5))]


def test_long_branch_is_cut_and_remembers_its_beginning() -> None:
    assert blocks_of([1, 200], 4) == [
        (Span(0, 0, 1), Span(1, 1, 128)),
        (Span(1, 128, 201),),
    ]


@pytest.mark.parametrize("lengths", [[1], [128], [129], [5] * 100, [300, 1, 128]])
def test_blocks_cover_every_row_once(lengths: list[int]) -> None:
    blocks = blocks_of(lengths, 4)
    rows = [row for block in blocks for span in block for row in range(span.start, span.stop)]
    assert rows == list(range(sum(lengths)))
    assert all(block[-1].stop - block[0].start <= 128 for block in blocks)
