"""The light profile's real weights: every real encoding, and a known answer."""

from pathlib import Path

import numpy as np
import pytest

from backend.embedded.gguf import GgufFile
from backend.embedded.model import Model
from backend.embedded.threads import ComputePool

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def model(light_weights: Path, pool: ComputePool) -> Model:
    return Model(light_weights, pool)


@pytest.fixture(scope="module")
def ids(light_weights: Path) -> dict[str, int]:
    tokens = GgufFile(light_weights).metadata["tokenizer.ggml.tokens"]
    return {token: number for number, token in enumerate(tokens)}


def test_it_knows_the_capital_of_france(model: Model, ids: dict[str, int]) -> None:
    prompt = [ids[word] for word in ("The", "Ġcapital", "Ġof", "ĠFrance", "Ġis")]
    hidden = model.forward([prompt], model.allocate(0))
    ((best, logprob, _),) = model.log_probabilities(hidden, [[]])
    assert best == ids["ĠParis"]
    assert np.exp(logprob) > 0.8


def test_cached_packed_and_uncached_agree(model: Model) -> None:
    generator = np.random.default_rng(3)
    labels = [list(range(32, 58))]

    def tokens(count: int) -> list[int]:
        return generator.integers(0, model.architecture.vocabulary, count).tolist()

    prefix, branches = tokens(80), [tokens(count) for count in (30, 1, 45)]
    state = model.allocate(len(prefix))
    model.forward([prefix], model.allocate(0), keep=state, ends=False)
    packed = model.log_probabilities(model.forward(branches, state), labels * 3)
    for branch, (_, _, together) in zip(branches, packed, strict=True):
        cached = model.log_probabilities(model.forward([branch], state), labels)[0][2]
        whole = model.forward([prefix + branch], model.allocate(0))
        uncached = model.log_probabilities(whole, labels)[0][2]
        for other in (cached, uncached):
            np.testing.assert_allclose(share(together), share(other), atol=1e-5)


def share(logprobs: list[float]) -> np.ndarray:
    weights = np.exp(np.array(logprobs) - max(logprobs))
    return weights / weights.sum()
