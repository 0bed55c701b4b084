"""A second, independent forward pass to hold the engine's against.

Plain float64, one token at a time, weights decoded by the `gguf` package; written from the papers,
not from the engine.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from backend.embedded.gguf import GgufFile


class Reference:
    """A model as the definition has it: slow, and with nothing shared or cached."""

    def __init__(self, path: Path) -> None:
        self.file = GgufFile(path)
        self.family = self.file.metadata["general.architecture"]

    def number(self, key: str) -> Any:
        return self.file.metadata[f"{self.family}.{key}"]

    def weight(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        tensor = self.file.tensors[name]
        encoding = gguf.GGMLQuantizationType(int(tensor.type))
        raw = np.array(tensor.raw)
        if encoding is gguf.GGMLQuantizationType.F32:
            values = raw.view(np.float32)
        else:
            values = gguf.quants.dequantize(raw, encoding)
        return values.reshape(tensor.shape).astype(np.float64)

    def norm(self, x: Any, name: str) -> Any:
        epsilon = self.number("attention.layer_norm_rms_epsilon")
        return x / np.sqrt(np.mean(x**2) + epsilon) * self.weight(name)

    def turn(self, head: Any, position: int) -> Any:
        """Rotate each pair as a complex number."""
        half = len(head) // 2
        pairs = head.reshape(half, 2) if self.family == "llama" else head.reshape(2, half).T
        speeds = self.number("rope.freq_base") ** (-np.arange(half) / half)
        turned = (pairs[:, 0] + 1j * pairs[:, 1]) * np.exp(1j * position * speeds)
        both = np.stack([turned.real, turned.imag], axis=1)
        return both.reshape(-1) if self.family == "llama" else both.T.reshape(-1)

    def linear(self, x: Any, name: str) -> Any:
        out = self.weight(name + ".weight") @ x
        if name + ".bias" in self.file.tensors:
            out = out + self.weight(name + ".bias")
        return out

    def log_probabilities(self, ids: list[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Over the vocabulary, after the last of `ids`, in nats."""
        heads, key_heads = (
            self.number("attention.head_count"),
            self.number("attention.head_count_kv"),
        )
        embedding = self.weight("token_embd.weight")
        rows = [embedding[token] for token in ids]
        size = embedding.shape[1] // heads
        for block in range(self.number("block_count")):
            at = f"blk.{block}."
            normed = [self.norm(x, at + "attn_norm.weight") for x in rows]
            split = {
                part: [self.linear(x, f"{at}attn_{part}").reshape(-1, size) for x in normed]
                for part in "qkv"
            }
            following = []
            for position, x in enumerate(rows):
                mixed = []
                for head in range(heads):
                    shared = head * key_heads // heads
                    query = self.turn(split["q"][position][head], position)
                    scores = np.array(
                        [
                            query @ self.turn(split["k"][before][shared], before) / np.sqrt(size)
                            for before in range(position + 1)
                        ]
                    )
                    chances = np.exp(scores - scores.max())
                    chances /= chances.sum()
                    mixed.append(
                        sum(
                            chance * split["v"][before][shared]
                            for before, chance in enumerate(chances)
                        )
                    )
                x = x + self.linear(np.concatenate(mixed), at + "attn_output")
                inner = self.norm(x, at + "ffn_norm.weight")
                gate = self.linear(inner, at + "ffn_gate")
                carried = gate / (1 + np.exp(-gate)) * self.linear(inner, at + "ffn_up")
                following.append(x + self.linear(carried, at + "ffn_down"))
            rows = following
        final = self.norm(rows[-1], "output_norm.weight")
        head = "output" if "output.weight" in self.file.tensors else "token_embd"
        logits = self.weight(head + ".weight") @ final
        return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
