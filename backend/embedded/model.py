"""The forward pass of Llama- and Qwen2-family models, in float32, without a generation loop.

It reads token ids and gives hidden states and log-probabilities; it knows nothing of requests,
caches or text. The same weights and ids give the same answer within float32 rounding whether they
are read at once, in chunks, after a cached prefix, or beside other branches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from backend.embedded.architecture import Architecture, read_architecture
from backend.embedded.attention import attend, plan_attention
from backend.embedded.gguf import GgufFile
from backend.embedded.linear import Linear, add_projection, gated, load_linear, project
from backend.embedded.quantisation import Floats, dequantise, vector
from backend.embedded.threads import ComputePool, Scratch

Ids = npt.NDArray[np.int64]


class Cancelled(Exception):
    """Nobody waits for the result of the pass any more."""


@dataclass(frozen=True, slots=True)
class KeyValues:
    """Keys and values of consecutive tokens, `(layers, key heads, tokens, head size)` each."""

    keys: Floats
    values: Floats

    @property
    def length(self) -> int:
        """Tokens."""
        return int(self.keys.shape[2])

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return self.keys.nbytes + self.values.nbytes

    def first(self, tokens: int) -> "KeyValues":
        """A view of the first `tokens`."""
        return KeyValues(self.keys[:, :, :tokens], self.values[:, :, :tokens])


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Floats
    queries_keys_values: tuple[Linear, Linear, Linear]
    bias: Floats | None
    attention_output: Linear
    feed_forward_norm: Floats
    gate: Linear
    up: Linear
    down: Linear


class Model:
    """Weights in memory and the arithmetic on them; one forward pass at a time.

    Attributes:
        architecture: shapes and constants.
        end_token_id: the token that ends an answer, where the file names one.
        weight_bytes: memory of the weights, in bytes.
    """

    def __init__(self, path: Path, pool: ComputePool, *, stop: Callable[[], bool] = bool) -> None:
        """Load the weights.

        Args:
            path: a GGUF file.
            pool: the threads that load and later compute.
            stop: asked before every layer; true abandons the loading.

        Raises:
            GgufError: the file cannot be read or holds a model that is not supported.
            Cancelled: `stop` answered true.
        """
        file = GgufFile(path)
        self.architecture: Architecture = read_architecture(file)
        end = file.metadata.get("tokenizer.ggml.eos_token_id")
        self.end_token_id: int | None = end if isinstance(end, int) else None
        self._pool = pool
        self._embedding = file.tensors["token_embd.weight"]
        self._layers: list[_Layer] = []
        for number in range(self.architecture.layers):
            if stop():
                raise Cancelled
            self._layers.append(_load_layer(file, number, pool))
            # The tiles are copies, so the mapped pages need not stay and count as our memory.
            file.release_pages()
        self._output_norm = vector(file.tensors["output_norm.weight"])
        head = file.tensors.get("output.weight", self._embedding)
        self._head = load_linear(head, pool)
        size = self.architecture.head_size
        self._frequencies = self.architecture.rope_base ** (-np.arange(0, size, 2) / size)
        self.weight_bytes = self._head.nbytes + sum(_bytes_of(layer) for layer in self._layers)
        file.release_pages()

    def allocate(self, tokens: int) -> KeyValues:
        """Room for the keys and values of so many tokens, uninitialised."""
        a = self.architecture
        shape = (a.layers, a.key_heads, tokens, a.head_size)
        return KeyValues(np.empty(shape, np.float32), np.empty(shape, np.float32))

    def _allocate_layer(self, tokens: int) -> tuple[Floats, Floats]:
        """Room for the keys and values of one layer."""
        shape = (self.architecture.key_heads, tokens, self.architecture.head_size)
        return np.empty(shape, np.float32), np.empty(shape, np.float32)

    def bytes_per_token(self) -> int:
        """Memory of one token's keys and values, in bytes."""
        a = self.architecture
        return 2 * 4 * a.layers * a.key_heads * a.head_size

    def forward(
        self,
        branches: Sequence[Sequence[int]],
        past: KeyValues,
        *,
        keep: KeyValues | None = None,
        ends: bool = True,
        stop: Callable[[], bool] = bool,
    ) -> Floats:
        """Read branches that all continue the same past.

        Args:
            branches: token ids of each; none is empty, every id is in the vocabulary.
            past: keys and values of what came before, possibly nothing.
            keep: where the rows' own keys and values go; `past.length` tokens from its start are
                already filled. Only with a single branch.
            ends: whether the hidden states at the branches' last tokens are wanted.
            stop: asked before every layer; true abandons the pass.

        Returns:
            Normalised hidden states at the last token of each branch, `(branches, width)`; empty
            if they are not wanted.

        Raises:
            Cancelled: `stop` answered true.
        """
        lengths = [len(branch) for branch in branches]
        ids = np.concatenate([np.asarray(branch, np.int64) for branch in branches])
        positions = np.concatenate([np.arange(length) for length in lengths]) + past.length
        last_rows = np.cumsum(lengths) - 1
        plan = plan_attention(
            lengths,
            heads_per_key=self.architecture.heads // self.architecture.key_heads,
            key_heads=self.architecture.key_heads,
            threads=self._pool.threads,
        )
        rotation = self._rotation(positions)
        x = dequantise(self._embedding.type, self._embedding.raw[ids])
        # Without `keep` the rows' own keys and values are wanted by their layer only.
        spare = self._allocate_layer(len(ids))
        for number, layer in enumerate(self._layers):
            if stop():
                raise Cancelled
            own = spare
            if keep is not None:
                rows = slice(past.length, past.length + len(ids))
                own = keep.keys[number, :, rows], keep.values[number, :, rows]
            queries = self._queries(layer, x, rotation, own)
            final = number == len(self._layers) - 1
            if final and not ends:
                return np.empty((0, x.shape[1]), np.float32)
            before = past.keys[number], past.values[number]
            mixed = attend(self._pool, queries, own, before, plan)
            if final:
                mixed, x = mixed[last_rows], x[last_rows]
            add_projection(self._pool, x, mixed, layer.attention_output)
            normed = self._norm(x, layer.feed_forward_norm)
            inner = gated(self._pool, normed, layer.gate, layer.up)
            add_projection(self._pool, x, inner, layer.down)
        return self._norm(x, self._output_norm)

    def log_probabilities(
        self, hidden: Floats, wanted: Sequence[Sequence[int]]
    ) -> list[tuple[int, float, list[float]]]:
        """Log-probabilities over the full vocabulary of the token that follows.

        Args:
            hidden: what `forward` returned, `(rows, width)`.
            wanted: for each row the token ids that are asked for.

        Returns:
            For each row: the most likely token id, its log-probability, and those of the wanted
            ids in the order asked. In nats; the normaliser is summed in float64.

        Raises:
            ArithmeticError: a logit is not a finite number.
        """
        logits = project(self._pool, hidden, self._head)
        answers: list[tuple[int, float, list[float]] | None] = [None] * len(wanted)

        def work(row: int, _: Scratch) -> None:
            exact = logits[row].astype(np.float64)
            peak = exact.max()
            normaliser = peak + np.log(np.exp(exact - peak).sum())
            if not np.isfinite(normaliser):
                raise ArithmeticError("The model gave a result that is not a finite number.")
            asked = (exact[np.asarray(wanted[row], np.int64)] - normaliser).tolist()
            answers[row] = int(exact.argmax()), float(peak - normaliser), asked

        self._pool.run(work, range(len(wanted)))
        return [answer for answer in answers if answer is not None]

    def _norm(self, x: Floats, weight: Floats) -> Floats:
        normed = np.empty_like(x)
        epsilon = np.float32(self.architecture.epsilon)

        def work(rows: slice) -> None:
            part, out = x[rows], normed[rows]
            mean_square = np.einsum("ij,ij->i", part, part)[:, None] / np.float32(x.shape[1])
            np.divide(part, np.sqrt(mean_square + epsilon), out=out)
            out *= weight

        self._pool.run_rows(work, len(x))
        return normed

    def _rotation(self, positions: Ids) -> tuple[Floats, Floats]:
        """Cosine and sine of the rotary angles, `(rows, 1, head size / 2)`."""
        angles = np.outer(positions, self._frequencies)[:, None, :]
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def _queries(
        self,
        layer: _Layer,
        x: Floats,
        rotation: tuple[Floats, Floats],
        own: tuple[Floats, Floats],
    ) -> Floats:
        """Scaled queries, `(rows, heads, head size)`; keys and values are written to `own`."""
        a = self.architecture
        mixed = project(self._pool, self._norm(x, layer.attention_norm), *layer.queries_keys_values)
        queries = np.empty((len(x), a.heads, a.head_size), np.float32)
        keys, values = (part.swapaxes(0, 1) for part in own)
        cosine, sine = rotation

        def work(rows: slice) -> None:
            part = mixed[rows]
            if layer.bias is not None:
                part += layer.bias
            heads = part.reshape(len(part), -1, a.head_size)
            turn = cosine[rows], sine[rows]
            _rotate(heads[:, : a.heads], turn, queries[rows], interleaved=a.interleaved)
            queries[rows] *= np.float32(a.head_size**-0.5)
            keyed = heads[:, a.heads : a.heads + a.key_heads]
            _rotate(keyed, turn, keys[rows], interleaved=a.interleaved)
            values[rows] = heads[:, a.heads + a.key_heads :]

        self._pool.run_rows(work, len(x))
        return queries


def _rotate(
    heads: Floats, rotation: tuple[Floats, Floats], out: Floats, *, interleaved: bool
) -> None:
    """Rotary position embedding (https://arxiv.org/abs/2104.09864) of `(rows, heads, size)`."""
    cosine, sine = rotation
    half = heads.shape[-1] // 2
    evens = np.s_[..., 0::2] if interleaved else np.s_[..., :half]
    odds = np.s_[..., 1::2] if interleaved else np.s_[..., half:]
    out[evens] = heads[evens] * cosine - heads[odds] * sine
    out[odds] = heads[odds] * cosine + heads[evens] * sine


def _load_layer(file: GgufFile, number: int, pool: ComputePool) -> _Layer:
    tensors = file.tensors
    prefix = f"blk.{number}."
    biases = [f"{prefix}attn_{part}.bias" for part in "qkv"]

    def linear(name: str) -> Linear:
        return load_linear(tensors[f"{prefix}{name}.weight"], pool)

    return _Layer(
        attention_norm=vector(tensors[prefix + "attn_norm.weight"]),
        queries_keys_values=(linear("attn_q"), linear("attn_k"), linear("attn_v")),
        bias=np.concatenate([vector(tensors[bias]) for bias in biases])
        if biases[0] in tensors
        else None,
        attention_output=linear("attn_output"),
        feed_forward_norm=vector(tensors[prefix + "ffn_norm.weight"]),
        gate=linear("ffn_gate"),
        up=linear("ffn_up"),
        down=linear("ffn_down"),
    )


def _bytes_of(layer: _Layer) -> int:
    others = (layer.attention_output, layer.gate, layer.up, layer.down)
    return sum(matrix.nbytes for matrix in (*layer.queries_keys_values, *others))
