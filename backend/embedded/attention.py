"""Grouped-query attention of several branches that share what came before them.

A forward pass works on rows that form branches (one branch when a prompt is read in chunks). Every
row sees all of the shared past and, causally, its own branch; never another branch. Both parts are
computed separately and combined exactly, so no score is computed only to be masked away.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backend.embedded.quantisation import Floats
from backend.embedded.threads import ComputePool, Scratch

# Bounds a score matrix: this many query rows times the visible keys, 4 bytes each, per thread.
_QUERY_ROWS = 512


@dataclass(frozen=True, slots=True)
class Span:
    """Rows `start` to `stop` of a forward pass that belong to the branch beginning at `branch`."""

    branch: int
    start: int
    stop: int


Block = tuple[Span, ...]


def blocks_of(lengths: Sequence[int], heads_per_key: int) -> list[Block]:
    """Cut the rows of a pass into blocks of bounded size, each a run of neighbouring spans.

    Args:
        lengths: rows of each branch, in order.
        heads_per_key: query heads that share one key head.
    """
    limit = max(1, _QUERY_ROWS // heads_per_key)
    blocks: list[Block] = []
    spans: list[Span] = []
    room, branch = limit, 0
    for length in lengths:
        start, end = branch, branch + length
        while start < end:
            stop = min(end, start + room)
            spans.append(Span(branch, start, stop))
            room -= stop - start
            start = stop
            if room == 0:
                blocks.append(tuple(spans))
                spans, room = [], limit
        branch = end
    if spans:
        blocks.append(tuple(spans))
    return blocks


def attend(
    pool: ComputePool,
    queries: Floats,
    own: tuple[Floats, Floats],
    past: tuple[Floats, Floats],
    blocks: Sequence[Block],
) -> Floats:
    """Attention of every row over the shared past and its own branch.

    Args:
        pool: the threads that share the blocks.
        queries: `(rows, query heads, head size)`, already divided by the square root of the size.
        own: keys and values of the rows, `(key heads, rows, head size)` each.
        past: keys and values before the rows, `(key heads, past length, head size)` each.
        blocks: what `blocks_of` made of the rows.

    Returns:
        `(rows, query heads * head size)`.
    """
    rows, heads, size = queries.shape
    key_heads = len(own[0])
    result = np.empty((rows, heads, size), np.float32)
    shared = heads // key_heads

    def work(job: tuple[int, Block], scratch: Scratch) -> None:
        head, block = job
        start, stop = block[0].start, block[-1].stop
        group = slice(head * shared, (head + 1) * shared)
        flat = queries[start:stop, group].reshape(-1, size)
        keys, values = own[0][head], own[1][head]
        state = _over_past(flat, past[0][head], past[1][head], scratch)
        for span in block:
            part = slice((span.start - start) * shared, (span.stop - start) * shared)
            own_part = (keys[span.branch : span.stop], values[span.branch : span.stop])
            _over_branch(flat[part], own_part, span, [array[part] for array in state])
        weighted, total, _ = state
        weighted /= total
        result[start:stop, group] = weighted.reshape(stop - start, shared, size)

    pool.run(work, [(head, block) for block in blocks for head in range(key_heads)])
    return result.reshape(rows, -1)


def _over_past(
    queries: Floats, keys: Floats, values: Floats, scratch: Scratch
) -> tuple[Floats, Floats, Floats]:
    """Weighted values, sum of weights and the largest score of each query over the past."""
    if not len(keys):
        column = (len(queries), 1)
        return (
            np.zeros_like(queries),
            np.zeros(column, np.float32),
            np.full(column, -np.inf, np.float32),
        )
    scores = scratch.floats((len(queries), len(keys)))
    np.matmul(queries, keys.T, out=scores)
    peak = scores.max(axis=1, keepdims=True)
    scores -= peak
    np.exp(scores, out=scores)
    return scores @ values, scores.sum(axis=1, keepdims=True), peak


def _over_branch(
    queries: Floats, own: tuple[Floats, Floats], span: Span, state: Sequence[Floats]
) -> None:
    """Add the causal part inside the branch to the running softmax, in place.

    Two partial softmaxes with peaks m1 and m2 combine by scaling each with exp(m - max(m1, m2)).
    """
    keys, values = own
    weighted, total, peak = state
    shared = len(queries) // (span.stop - span.start)
    scores = queries @ keys.T
    own_rows = np.arange(span.start - span.branch, span.stop - span.branch)
    hidden = np.arange(len(keys)) > np.repeat(own_rows, shared)[:, None]
    scores[hidden] = -np.inf
    top = np.maximum(peak, scores.max(axis=1, keepdims=True))
    scores -= top
    np.exp(scores, out=scores)
    before = np.exp(peak - top)
    weighted *= before
    weighted += scores @ values
    total *= before
    total += scores.sum(axis=1, keepdims=True)
    peak[...] = top
