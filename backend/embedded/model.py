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
from backend.embedded.attention import attend, blocks_of
from backend.embedded.gguf import GgufFile
from backend.embedded.linear import Linear, gated, load_linear, project
from backend.embedded.quantisation import Floats, dequantise, vector
from backend.embedded.threads import ComputePool

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
        blocks = blocks_of(lengths, self.architecture.heads // self.architecture.key_heads)
        rotation = self._rotation(positions)
        x = dequantise(self._embedding.type, self._embedding.raw[ids])
        for number, layer in enumerate(self._layers):
            if stop():
                raise Cancelled
            queries, keys, values = self._queries_keys_values(layer, x, rotation)
            if keep is not None:
                rows = slice(past.length, past.length + len(ids))
                keep.keys[number, :, rows], keep.values[number, :, rows] = keys, values
            final = number == len(self._layers) - 1
            if final and not ends:
                return np.empty((0, x.shape[1]), np.float32)
            before = past.keys[number], past.values[number]
            mixed = attend(self._pool, queries, (keys, values), before, blocks)
            if final:
                mixed, x = mixed[last_rows], x[last_rows]
            x += project(self._pool, mixed, layer.attention_output)
            normed = self._norm(x, layer.feed_forward_norm)
            x += project(self._pool, gated(self._pool, normed, layer.gate, layer.up), layer.down)
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
        answers = []
        for row, ids in zip(logits, wanted, strict=True):
            exact = row.astype(np.float64)
            peak = exact.max()
            normaliser = peak + np.log(np.exp(exact - peak).sum())
            if not np.isfinite(normaliser):
                raise ArithmeticError("The model gave a result that is not a finite number.")
            best = int(exact.argmax())
            asked = (exact[np.asarray(ids, np.int64)] - normaliser).tolist()
            answers.append((best, float(peak - normaliser), asked))
        return answers

    def _norm(self, x: Floats, weight: Floats) -> Floats:
        mean_square = np.einsum("ij,ij->i", x, x)[:, None] / np.float32(x.shape[1])
        normed: Floats = x / np.sqrt(mean_square + np.float32(self.architecture.epsilon))
        normed *= weight
        return normed

    def _rotation(self, positions: Ids) -> tuple[Floats, Floats]:
        """Cosine and sine of the rotary angles, `(rows, 1, head size / 2)`."""
        angles = np.outer(positions, self._frequencies)[:, None, :]
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def _queries_keys_values(
        self, layer: _Layer, x: Floats, rotation: tuple[Floats, Floats]
    ) -> tuple[Floats, Floats, Floats]:
        a = self.architecture
        mixed = project(self._pool, self._norm(x, layer.attention_norm), *layer.queries_keys_values)
        if layer.bias is not None:
            mixed += layer.bias
        heads = mixed.reshape(len(x), a.heads + 2 * a.key_heads, a.head_size)
        turned = _rotate(heads[:, : a.heads + a.key_heads], rotation, interleaved=a.interleaved)
        queries = turned[:, : a.heads] * np.float32(a.head_size**-0.5)
        keys = np.ascontiguousarray(turned[:, a.heads :].swapaxes(0, 1))
        values = np.ascontiguousarray(heads[:, a.heads + a.key_heads :].swapaxes(0, 1))
        return queries, keys, values


def _rotate(heads: Floats, rotation: tuple[Floats, Floats], *, interleaved: bool) -> Floats:
    """Rotary position embedding (https://arxiv.org/abs/2104.09864) of `(rows, heads, size)`."""
    cosine, sine = rotation
    half = heads.shape[-1] // 2
    evens = np.s_[..., 0::2] if interleaved else np.s_[..., :half]
    odds = np.s_[..., 1::2] if interleaved else np.s_[..., half:]
    turned = np.empty_like(heads)
    turned[evens] = heads[evens] * cosine - heads[odds] * sine
    turned[odds] = heads[odds] * cosine + heads[evens] * sine
    return turned


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
