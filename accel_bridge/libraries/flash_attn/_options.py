"""flash-attn's arguments in the terms of the kernel contract, also while a graph is captured.

No number may be read from the device then. Packed sequences and cached keys have lengths that only
the device knows: every key that there is room for takes part, and a mask, made on the device, hides
those that are not there.

Legend: t packed queries, b sequences, s keys that a sequence has room for, n query heads, g key
heads, d head size.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from accel_bridge.kernels import ATTENTION, AttentionMask, AttentionOptions, Layout
from accel_bridge.kernels.active import kernel


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


def capturing(tensor: torch.Tensor) -> bool:
    """Whether the device of ``tensor`` records a graph now."""
    return tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def packed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    block_table: torch.Tensor | None,
    *,
    causal: bool,
    window: tuple[int, int],
    scale: float | None,
    return_lse: bool,
) -> Any:
    """Packed queries [t, n, d] over packed keys [t', g, d], or over pages [pages, size, g, d].

    :returns: [t, n, d], zeros behind the last sequence; with ``return_lse`` also [n, t].
    """
    sequence, place = _places(cu_seqlens_q, q.shape[0])
    lengths_q, lengths_k = cu_seqlens_q.diff(), cu_seqlens_k.diff()
    if block_table is None:
        owner, position = _places(cu_seqlens_k, k.shape[0])
    else:
        k, v = (pages[block_table.long()].flatten(0, 2) for pages in (k, v))
        inside = torch.arange(k.shape[0], device=q.device)
        room = k.shape[0] // block_table.shape[0]
        owner, position = inside // room, inside % room
    last = len(lengths_q) - 1
    # Where each query stands among its sequence's keys, of which it is one of the last.
    stands = place + (lengths_k - lengths_q)[sequence.clamp(max=last)]
    seen = _seen(stands[:, None], position[None], causal, window)
    seen &= sequence[:, None] == owner[None]
    seen &= (position < lengths_k[owner.clamp(max=last)])[None]
    seen &= (sequence <= last)[:, None]
    options = _options(seen[None, None], scale, return_lse)
    result = kernel(ATTENTION)(q[None], k[None], v[None], options)
    if isinstance(result, torch.Tensor):
        return result[0]
    return result[0][0], result[1][0]


def cached(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    lengths: torch.Tensor,
    *,
    causal: bool,
    window: tuple[int, int],
    scale: float | None,
    return_lse: bool,
) -> Any:
    """Queries [b, sq, n, d] over the first ``lengths`` [b] of keys [b, s, g, d]."""
    position = torch.arange(keys.shape[1], device=q.device)
    place = torch.arange(q.shape[1], device=q.device) + (lengths[:, None] - q.shape[1])
    seen = _seen(place[:, :, None], position[None, None], causal, window)
    seen = seen & (position < lengths[:, None])[:, None]
    return kernel(ATTENTION)(q, keys, values, _options(seen[:, None], scale, return_lse))


def _places(cu_seqlens: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each of ``count`` rows its sequence, and its place in it; behind the last one b."""
    rows = torch.arange(count, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens[1:].contiguous(), rows, right=True)
    return sequence, rows - cu_seqlens[sequence]


def _seen(
    query: torch.Tensor, key: torch.Tensor, causal: bool, window: tuple[int, int]
) -> torch.Tensor:
    """Which keys a query may see, by their positions."""
    left, right = window
    right = 0 if causal and right < 0 else min(right, 0) if causal else right
    seen = torch.ones_like(query - key, dtype=torch.bool)
    if right >= 0:
        seen &= key <= query + right
    if left >= 0:
        seen &= key >= query - left
    return seen


def _options(seen: torch.Tensor, scale: float | None, return_lse: bool) -> AttentionOptions:
    mask = AttentionMask(masked=~seen)
    return AttentionOptions(layout="BSHD", mask=mask, scale=scale, return_lse=return_lse)
