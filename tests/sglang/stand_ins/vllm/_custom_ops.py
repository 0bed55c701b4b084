"""Rotary position embedding, in plain PyTorch."""

import torch


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> None:
    """Rotate `query` and `key` in place, as vLLM's operator of this name does.

    Args:
        positions: position of each token.
        query: one row of all heads for each token.
        key: the same; `None` where there is none.
        head_size: width of a head.
        cos_sin_cache: by position, the cosines and then the sines of the rotated pairs.
        is_neox: whether a pair is element i of each half, or else two neighbours.
    """
    cosines, sines = cos_sin_cache[positions.flatten()].float().unsqueeze(1).chunk(2, dim=-1)
    pairs = cosines.shape[-1]
    for rows in (query, key):
        if rows is None:
            continue
        rotated = rows.view(positions.numel(), -1, head_size)[..., : 2 * pairs]
        if is_neox:
            first, second = rotated[..., :pairs], rotated[..., pairs:]
        else:
            first, second = rotated[..., 0::2], rotated[..., 1::2]
        x, y = first.float(), second.float()
        first.copy_(x * cosines - y * sines)
        second.copy_(y * cosines + x * sines)
