"""How near reading a state comes to the bare matrix products of the model's linear layers.

The products are made with float32 weights that lie ready in memory, in the engine's own threads,
with as many tokens at once as the engine reads: all that is missing is decoding the weights,
attention, norms and activations. One layer's matrices serve for all layers, and are larger than a
processor's cache, so they come from memory each time, as the others' would.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backend.embedded.gguf import GgufFile, Tensor
from backend.embedded.linear import Linear, PlainTile, project, tile_size
from backend.embedded.model import Model
from backend.embedded.quantisation import dequantise
from backend.embedded.scheduler import MAX_PASS_TOKENS
from backend.embedded.threads import ComputePool
from benchmarks.embedded.taken import Taken, timed

# side by side on the same input, as the model has them
_TOGETHER = (
    ("attn_q", "attn_k", "attn_v"),
    ("attn_output",),
    ("ffn_gate", "ffn_up"),
    ("ffn_down",),
)


@dataclass(frozen=True, slots=True)
class Prefill:
    """Reading the same number of tokens, by the engine and by its bare products.

    Attributes:
        tokens: that were read.
        engine: time of the engine.
        products: time of the products.
        operations: floating-point operations of the products.
    """

    tokens: int
    engine: Taken
    products: Taken
    operations: float

    def __str__(self) -> str:
        """Rates, and what they are to each other."""
        engine, products = (self.tokens / taken.seconds for taken in (self.engine, self.products))
        return (
            f"prefill: {engine:.1f} tokens/s; bare products: {products:.1f} tokens/s "
            f"({self.operations / self.products.seconds / 1e9:.0f} GFLOP/s); "
            f"ratio {self.share:.2f}, of processor time {self.products.cpu / self.engine.cpu:.2f}"
        )

    @property
    def share(self) -> float:
        """The engine's rate as a share of the products'."""
        return self.products.to(self.engine)


class BareProducts:
    """The linear layers of a model, and nothing else."""

    def __init__(self, path: Path, pool: ComputePool) -> None:
        tensors = GgufFile(path).tensors
        self._pool = pool
        self._layers = sum("attn_q.weight" in name for name in tensors)
        self._groups = [
            [_plain(tensors[f"blk.0.{name}.weight"]) for name in names] for names in _TOGETHER
        ]

    def operations(self, tokens: int) -> float:
        """Floating-point operations for so many tokens."""
        weights = sum(one.inputs * one.outputs for group in self._groups for one in group)
        return 2.0 * tokens * weights * self._layers

    def run(self, tokens: int) -> None:
        """Do all products for so many tokens at once."""
        inputs = [np.ones((tokens, group[0].inputs), np.float32) for group in self._groups]
        for _ in range(self._layers):
            for x, group in zip(inputs, self._groups, strict=True):
                project(self._pool, x, *group)


def _plain(tensor: Tensor) -> Linear:
    outputs, inputs = tensor.shape
    weights = dequantise(tensor.type, tensor.raw)
    size = tile_size(outputs)
    starts = range(0, outputs, size)
    tiles = (PlainTile(np.ascontiguousarray(weights[start : start + size].T)) for start in starts)
    return Linear(inputs, outputs, tuple(tiles))


def measure(model: Model, products: BareProducts, state: list[int], rounds: int) -> Prefill:
    """Read the state pass by pass, with the bare products of each pass in between."""
    engine, bare = Taken(), Taken()
    for _ in range(rounds):
        kept = model.allocate(len(state))
        for start in range(0, len(state), MAX_PASS_TOKENS):
            part = state[start : start + MAX_PASS_TOKENS]
            past = kept.first(start)
            engine += timed(lambda: model.forward([part], past, keep=kept, ends=False))[0]  # noqa: B023 - called at once
            bare += timed(lambda: products.run(len(part)))[0]  # noqa: B023
    tokens = len(state) * rounds
    return Prefill(tokens, engine, bare, products.operations(tokens))
