"""The forward pass against an independent one, and against itself in every way of reading."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from backend.embedded.model import Cancelled, Model
from tests.backend.embedded.reference import Reference
from tests.support.tiny_gguf import write_tiny_gguf

ENCODINGS = ("Q4_K", "Q6_K", "Q5_K", "Q8_0", "Q5_0", "Q4_0", "Q4_1", "Q5_1", "F16", "F32")
EVERY_ID = tuple(range(851))


def random_ids(count: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(0, 851, count).tolist()


def after(model: Model, ids: list[int]) -> np.ndarray:
    """Log-probabilities over the vocabulary after a prompt read at once with nothing cached."""
    hidden = model.forward([ids], model.allocate(0))
    return np.array(model.log_probabilities(hidden, [EVERY_ID])[0][2])


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
@pytest.mark.parametrize("encodings", [("F32",), ENCODINGS], ids=["float32", "mixed"])
def test_log_probabilities_equal_the_reference(
    tmp_path: Path,
    load: Callable[[Path], Model],
    architecture: str,
    encodings: tuple[str, ...],
) -> None:
    width = 64 if encodings == ("F32",) else 256
    path = write_tiny_gguf(
        tmp_path / "model.gguf",
        architecture=architecture,
        encodings=encodings,
        embedding_length=width,
        feed_forward_length=2 * width,
        tied=width == 64,
    )
    ids = random_ids(17)
    expected = Reference(path).log_probabilities(ids)
    actual = after(load(path), ids)
    np.testing.assert_allclose(actual, expected, atol=2e-4)
    np.testing.assert_allclose(np.exp(actual), np.exp(expected), atol=1e-5)


def test_log_probabilities_cover_the_whole_vocabulary(tiny_model: Model) -> None:
    hidden = tiny_model.forward([random_ids(5)], tiny_model.allocate(0))
    ((best, best_logprob, asked),) = tiny_model.log_probabilities(hidden, [EVERY_ID])
    assert np.exp(asked).sum() == pytest.approx(1, abs=1e-6)
    assert best == int(np.argmax(asked))
    assert best_logprob == asked[best]


@pytest.mark.parametrize("prefix_length", [1, 2, 90, 300])
def test_cached_equals_uncached_and_packed_equals_alone(
    tiny_model: Model, prefix_length: int
) -> None:
    prefix = random_ids(prefix_length)
    branches = [random_ids(length, seed=length) for length in (1, 7, 150, 3, 40)]
    state = tiny_model.allocate(prefix_length)
    tiny_model.forward([prefix], tiny_model.allocate(0), keep=state, ends=False)
    together = tiny_model.forward(branches, state)
    packed = tiny_model.log_probabilities(together, [EVERY_ID] * len(branches))
    for branch, (_, _, logprobs) in zip(branches, packed, strict=True):
        alone = tiny_model.forward([branch], state)
        cached = tiny_model.log_probabilities(alone, [EVERY_ID])[0][2]
        np.testing.assert_allclose(np.exp(logprobs), np.exp(cached), atol=1e-5)
        np.testing.assert_allclose(
            np.exp(logprobs), np.exp(after(tiny_model, prefix + branch)), atol=1e-5
        )


def test_reading_in_chunks_equals_reading_at_once(tiny_model: Model) -> None:
    ids = random_ids(200)
    state = tiny_model.allocate(200)
    for start in range(0, 200, 64):
        hidden = tiny_model.forward(
            [ids[start : start + 64]], state.first(start), keep=state, ends=start + 64 >= 200
        )
    chunked = tiny_model.log_probabilities(hidden, [EVERY_ID])[0][2]
    np.testing.assert_allclose(np.exp(chunked), np.exp(after(tiny_model, ids)), atol=1e-5)


def test_pass_is_abandoned_when_nobody_waits(tiny_model: Model) -> None:
    asked = iter([False, True])
    with pytest.raises(Cancelled):
        tiny_model.forward([[1, 2, 3]], tiny_model.allocate(0), stop=lambda: next(asked))


def test_loading_is_abandoned_on_demand(tiny_gguf: Path, tiny_model: Model) -> None:
    with pytest.raises(Cancelled):
        Model(tiny_gguf, tiny_model._pool, stop=lambda: True)


def test_result_that_is_not_finite_is_refused(tiny_model: Model) -> None:
    hidden = np.full((1, 64), np.nan, np.float32)
    with pytest.raises(ArithmeticError, match="not a finite number"):
        tiny_model.log_probabilities(hidden, [[1]])


def test_bytes_per_token_is_what_is_allocated(tiny_model: Model) -> None:
    assert tiny_model.allocate(10).nbytes == 10 * tiny_model.bytes_per_token()
