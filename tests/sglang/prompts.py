"""Prompts that mean nothing, as the model does not either."""

import random

IDS = 800  # all of them are in the tiny model's vocabulary


def tokens(count: int, seed: int) -> list[int]:
    """As many token ids, the same ones for the same seed."""
    chooser = random.Random(seed)  # noqa: S311 - nothing secret
    return [chooser.randrange(IDS) for _ in range(count)]
