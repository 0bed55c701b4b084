"""Grouped-query attention of several branches that share what came before them.

A forward pass works on rows that form branches (one branch when a prompt is read in chunks). Every
row sees all of the shared past and, causally, its own branch; never another branch. The queries of
all branches meet the shared past in the same matrix products; each branch's own keys come after.
The parts are combined exactly, so no branch costs a score that is only masked away, except in the
triangle above the diagonal of a block.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backend.embedded.quantisation import Floats
from backend.embedded.threads import ComputePool, Scratch

# Bounds the scores of one product: so many query rows times so many keys, 4 bytes each, per thread.
# Larger products are no faster, and what is done to the scores between them is slower out of cache.
_QUERY_ROWS, _KEYS = 512, 1024


@dataclass(frozen=True, slots=True)
class Span:
    """Rows `start` to `stop` of a forward pass that belong to the branch beginning at `branch`."""

    branch: int
    start: int
    stop: int


Block = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """How the rows of a pass are divided; the same for every layer.

    Attributes:
        blocks: runs of neighbouring spans, of bounded size.
        triangle: added to the scores of a span's rows over the span's own keys: minus infinity
            where the key comes after the row. For the longest span; others take its corner.
    """

    blocks: tuple[Block, ...]
    triangle: Floats


def plan_attention(
    lengths: Sequence[int], *, heads_per_key: int, key_heads: int, threads: int
) -> Plan:
    """Cut the rows of a pass into blocks, small enough for the cache and enough for all threads.

    Args:
        lengths: rows of each branch, in order.
        heads_per_key: query heads that share one key head.
        key_heads: how many key heads there are; each is a job of its own.
        threads: that share the jobs.
    """
    shares = -(-sum(lengths) * key_heads // threads)
    limit = max(1, min(_QUERY_ROWS // heads_per_key, shares))
    blocks = tuple(_blocks(lengths, limit))
    longest = max(span.stop - span.start for block in blocks for span in block)
    later = np.arange(longest) > np.arange(longest)[:, None]
    triangle = np.where(later, np.float32(-np.inf), np.float32(0))
    return Plan(blocks, np.repeat(triangle, heads_per_key, axis=0))


def _blocks(lengths: Sequence[int], limit: int) -> list[Block]:
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
    plan: Plan,
) -> Floats:
    """Attention of every row over the shared past and its own branch.

    Args:
        pool: the threads that share the blocks.
        queries: `(rows, query heads, head size)`, already divided by the square root of the size.
        own: keys and values of the rows, `(key heads, rows, head size)` each.
        past: keys and values before the rows, `(key heads, past length, head size)` each.
        plan: what `plan_attention` made of the rows.

    Returns:
        `(rows, query heads * head size)`.
    """
    rows, heads, size = queries.shape
    key_heads, past_length, _ = past[0].shape
    result = np.empty((rows, heads, size), np.float32)
    shared = heads // key_heads

    def work(job: tuple[int, Block], scratch: Scratch) -> None:
        head, block = job
        start, stop = block[0].start, block[-1].stop
        group = slice(head * shared, (head + 1) * shared)
        softmax = _Softmax(queries[start:stop, group].reshape(-1, size), scratch)
        for first in range(0, past_length, _KEYS):
            seen = slice(first, first + _KEYS)
            softmax.add(slice(None), past[0][head, seen], past[1][head, seen])
        for span in block:
            lines = slice((span.start - start) * shared, (span.stop - start) * shared)
            seen = slice(span.branch, span.stop)
            softmax.add(lines, own[0][head, seen], own[1][head, seen], plan.triangle)
        result[start:stop, group] = softmax.mean().reshape(stop - start, shared, size)

    pool.run(work, [(head, block) for block in plan.blocks for head in range(key_heads)])
    return result.reshape(rows, -1)


class _Softmax:
    """The values' mean, weighted by the softmax of scores that come in parts.

    Two parts whose largest scores are m1 and m2 combine exactly by scaling the sums of each with
    exp(m - max(m1, m2)).
    """

    def __init__(self, queries: Floats, scratch: Scratch) -> None:
        self._queries, self._scratch = queries, scratch
        self._weighted = np.zeros_like(queries)
        self._total = np.zeros((len(queries), 1), np.float32)
        self._peak = np.full((len(queries), 1), -np.inf, np.float32)

    def add(
        self, lines: slice, keys: Floats, values: Floats, triangle: Floats | None = None
    ) -> None:
        """Let some queries see more keys; with a triangle the last keys are their own, causally."""
        queries, peak = self._queries[lines], self._peak[lines]
        scores = self._scratch.floats((len(queries), len(keys)))
        np.matmul(queries, keys.T, out=scores)
        if triangle is not None:
            own = len(queries) * triangle.shape[1] // len(triangle)
            scores[:, -own:] += triangle[: len(queries), :own]
        top = np.maximum(peak, scores.max(axis=1, keepdims=True))
        scores -= top
        np.exp(scores, out=scores)
        before = np.exp(peak - top)
        for sums, part in (
            (self._weighted[lines], values),
            (self._total[lines], np.ones((len(keys), 1), np.float32)),
        ):
            sums *= before
            sums += scores @ part
        peak[...] = top

    def mean(self) -> Floats:
        """What the queries see, `(queries, head size)`."""
        self._weighted /= self._total
        return self._weighted
