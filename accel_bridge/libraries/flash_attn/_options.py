"""flash-attn's arguments in the terms of the kernel contract.

Legend: b batch, sq and sk lengths of queries and keys, n query heads, g key heads, d head size,
t tokens of packed sequences.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from accel_bridge.kernels import AttentionMask, AttentionOptions, Layout


def options_of(
    layout: Layout,
    *,
    scale: float | None,
    causal: bool,
    window: tuple[int, int],
    softcap: float,
    dropout: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    return_lse: bool = False,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
) -> AttentionOptions:
    """The kernel's options; causal masks and windows are aligned to the bottom right."""
    return AttentionOptions(
        layout=layout,
        mask=_mask(causal, tuple(window)),
        scale=scale,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        dropout=dropout,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_kv=None if cu_seqlens_k is cu_seqlens_q else cu_seqlens_k,
        return_lse=return_lse,
    )


@lru_cache(maxsize=64)
def _mask(causal: bool, window: tuple[int, ...]) -> AttentionMask:
    left, right = (None if end < 0 else end for end in window)
    band = None if left is None and right is None else (left, right)
    return AttentionMask(causal=causal, window=band)
