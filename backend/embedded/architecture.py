"""What a GGUF file says about its model, checked before anything is computed.

A model that differs from what the forward pass does in any way that shows in its metadata or its
list of tensors is refused with a sentence: a wrong answer would look like a right one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from backend.embedded.gguf import GgufError, GgufFile, TensorType

# Whether rotary position pairs are neighbours (interleaved) or half a head apart.
_INTERLEAVED = {"llama": True, "qwen2": False}


@dataclass(frozen=True, slots=True)
class Architecture:
    """The shape of a Llama- or Qwen2-family model.

    Attributes:
        name: `llama` or `qwen2`.
        layers: transformer blocks.
        width: embedding length.
        heads: query heads.
        key_heads: key and value heads, a divisor of `heads`.
        head_size: length of one head.
        hidden: length inside the feed-forward layer.
        epsilon: of the RMS norms.
        rope_base: base of the rotary frequencies.
        interleaved: whether rotary pairs are neighbours.
        context_length: tokens the model was trained for.
        vocabulary: number of token ids.
    """

    name: str
    layers: int
    width: int
    heads: int
    key_heads: int
    head_size: int
    hidden: int
    epsilon: float
    rope_base: float
    interleaved: bool
    context_length: int
    vocabulary: int


def read_architecture(file: GgufFile) -> Architecture:
    """Read and check the metadata and the tensors' shapes.

    Raises:
        GgufError: the model is of another family or needs something that is not supported.
    """
    name = file.metadata.get("general.architecture")
    if name not in _INTERLEAVED:
        supported = " and ".join(_INTERLEAVED)
        raise _refusal(
            file, f"its architecture is {name!r}; the embedded engine runs {supported} models"
        )
    numbers = _Numbers(file, name)
    _refuse_extensions(file, name)
    heads, width = numbers.whole("attention.head_count"), numbers.whole("embedding_length")
    if width % heads:
        raise _refusal(file, f"its width {width} is no multiple of its {heads} heads")
    embedding = file.tensors.get("token_embd.weight")
    architecture = Architecture(
        name=name,
        layers=numbers.whole("block_count"),
        width=width,
        heads=heads,
        key_heads=numbers.whole("attention.head_count_kv", heads),
        head_size=width // heads,
        hidden=numbers.whole("feed_forward_length"),
        epsilon=numbers.real("attention.layer_norm_rms_epsilon"),
        rope_base=numbers.real("rope.freq_base", 10_000.0),
        interleaved=_INTERLEAVED[name],
        context_length=numbers.whole("context_length"),
        vocabulary=embedding.shape[0] if embedding else 0,
    )
    if heads % architecture.key_heads or architecture.head_size % 2:
        raise _refusal(file, "its attention heads do not divide evenly")
    for key in ("rope.dimension_count", "attention.key_length", "attention.value_length"):
        if numbers.whole(key, architecture.head_size) != architecture.head_size:
            raise _refusal(file, f"{key} differs from its head size {architecture.head_size}")
    _check_tensors(file, architecture)
    return architecture


class _Numbers:
    """Metadata values of one architecture, by key without its prefix."""

    def __init__(self, file: GgufFile, name: str) -> None:
        self._file, self._name = file, name

    def real(self, key: str, default: float | None = None) -> float:
        value: Any = self._file.metadata.get(f"{self._name}.{key}", default)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:  # also refuses NaN
            raise _refusal(self._file, f"{self._name}.{key} is missing or not a positive number")
        return float(value)

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.real(key, default)
        if value != int(value):
            raise _refusal(self._file, f"{self._name}.{key} is not a whole number")
        return int(value)


def _refuse_extensions(file: GgufFile, name: str) -> None:
    scaling = file.metadata.get(f"{name}.rope.scaling.type", "none")
    if scaling != "none":
        raise _refusal(file, f"it needs rotary scaling of type {scaling!r}, which is not supported")
    for key, what in (("expert_count", "experts"), ("attention.sliding_window", "windows")):
        if file.metadata.get(f"{name}.{key}", 0):
            raise _refusal(file, f"it needs {what} ({name}.{key}), which are not supported")


def _tensor_shapes(architecture: Architecture) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """Name, shape and necessity of every tensor the forward pass knows."""
    a = architecture
    keys = a.key_heads * a.head_size
    yield "token_embd.weight", (a.vocabulary, a.width), True
    yield "output.weight", (a.vocabulary, a.width), False
    yield "output_norm.weight", (a.width,), True
    for layer in range(a.layers):
        prefix = f"blk.{layer}."
        yield prefix + "attn_norm.weight", (a.width,), True
        for part, size in (("q", a.width), ("k", keys), ("v", keys)):
            yield f"{prefix}attn_{part}.weight", (size, a.width), True
            if a.name == "qwen2":
                yield f"{prefix}attn_{part}.bias", (size,), True
        yield prefix + "attn_output.weight", (a.width, a.width), True
        yield prefix + "ffn_norm.weight", (a.width,), True
        yield prefix + "ffn_gate.weight", (a.hidden, a.width), True
        yield prefix + "ffn_up.weight", (a.hidden, a.width), True
        yield prefix + "ffn_down.weight", (a.width, a.hidden), True


def _check_tensors(file: GgufFile, architecture: Architecture) -> None:
    known = set()
    for name, shape, needed in _tensor_shapes(architecture):
        known.add(name)
        tensor = file.tensors.get(name)
        if tensor is None:
            if needed:
                raise _refusal(file, f"tensor {name} is missing")
        elif tensor.shape != shape:
            raise _refusal(file, f"tensor {name} has shape {tensor.shape} instead of {shape}")
        elif len(shape) == 1 and tensor.type not in {TensorType.F32, TensorType.F16}:
            raise _refusal(file, f"tensor {name} is quantised, which only matrices may be")
    strange = [name for name in file.tensors if name not in known]
    if strange:
        raise _refusal(file, f"it has tensors that are not supported, {strange[0]} among them")


def _refusal(file: GgufFile, reason: str) -> GgufError:
    return GgufError(f"The model in {file.path} cannot be run: {reason}.")
