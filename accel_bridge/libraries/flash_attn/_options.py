"""flash-attn's arguments in the terms of the kernel contract.

Legend: b batch, sq and sk lengths of queries and keys, n query heads, g key heads, d head size,
t tokens of packed sequences.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from accel_bridge.errors import BridgeError
from accel_bridge.kernels import AttentionMask, AttentionOptions, Layout


def options_of(
    layout: Layout,
    query: torch.Tensor,
    key: torch.Tensor,
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
    """The kernel's options; causal masks and windows are aligned to the bottom right.

    :raises BridgeError: a soft cap, or ALiBi with packed sequences.
    """
    if softcap:
        raise BridgeError(
            "Attention with a soft cap of its scores is not served.",
            evidence=f"softcap {softcap}",
            next="use softcap=0.0, or an attention implementation of the model's own",
        )
    return AttentionOptions(
        layout=layout,
        mask=_mask(causal, tuple(window)),
        scale=scale,
        bias=None if alibi_slopes is None else _alibi(layout, query, key, alibi_slopes),
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


def _alibi(
    layout: Layout, query: torch.Tensor, key: torch.Tensor, slopes: torch.Tensor
) -> torch.Tensor:
    """float32 [b or 1, n, sq, sk]: ``-slope * |i + sk - sq - j|``; slopes are [n] or [b, n]."""
    if layout == "TND":
        raise BridgeError(
            "Packed sequences with ALiBi are not served.",
            evidence=f"alibi_slopes of shape {list(slopes.shape)}",
            next="use flash_attn_func on padded sequences",
        )
    sq, sk = query.shape[1], key.shape[1]
    place = torch.arange(sq, device=query.device)[:, None] + (sk - sq)
    distance = (place - torch.arange(sk, device=query.device)).abs()
    rows = slopes if slopes.dim() == 2 else slopes[None]
    return -distance * rows[:, :, None, None]
