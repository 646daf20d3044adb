"""Band windows on FlexAttention: tiles outside of the band are never touched.

Legend: b batch, s sequence, n query heads, g key/value heads, d head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


@cache
def _compiled() -> Callable[..., Any]:
    """FlexAttention through torch.compile, which makes a kernel for each band and shape."""
    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    return compiled


@lru_cache(maxsize=16)
def _blocks(s: int, left: int, right: int, device: torch.device) -> Any:
    """Which tiles of [s, s] hold visible keys ``i - left <= j <= i + right``."""

    def visible(b: Any, n: Any, i: Any, j: Any) -> Any:
        return (j >= i - left) & (j <= i + right)

    return create_block_mask(visible, None, None, s, s, device=device)


def band_attention(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor], left: int, right: int, scale: float
) -> torch.Tensor:
    """q [b, n, s, d], k and v [b, g, s, d] -> [b, n, s, d]; -1 for an end without limit."""
    query, key, value = tensors
    s = query.shape[2]
    mask = _blocks(s, s if left < 0 else left, s if right < 0 else right, query.device)
    output: torch.Tensor = _compiled()(
        query,
        key,
        value,
        block_mask=mask,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output
