"""Attention over a cache of keys and values.

Legend: b batch, sq new queries, s cached length, n query heads, g key heads, d head size.
"""

from __future__ import annotations

from typing import Any

import torch

from accel_bridge.kernels import ATTENTION
from accel_bridge.kernels.active import kernel

from ._captured import cached, capturing
from ._options import options_of
from .layers.rotary import apply_rotary_emb


@torch.no_grad()
def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Store new keys and values, rotate new queries and keys, and attend to all that is cached.

    :param q: [b, sq, n, d].
    :param k_cache: [batches, s, g, d], or pages [pages, size, g, d] with ``block_table``; written
        in place where ``k`` is given. v_cache likewise.
    :param k: [b, new, g, d], stored behind ``cache_seqlens`` tokens; v likewise.
    :param rotary_cos: [positions, r / 2]; positions count rows of the cache, left padding too.
    :param cache_seqlens: int32 [b] or a number, cached before this call; default all.
    :param cache_batch_idx: int32 [b], each sequence's row of the cache.
    :param cache_leftpad: int32 [b], rows before a sequence's first token; ``cache_seqlens`` counts
        them.
    :param block_table: int32 [b, pages of a sequence].
    :param alibi_slopes: float32 [n] or [b, n].
    :returns: [b, sq, n, d]; with ``return_softmax_lse`` also float32 [b, n, sq].
    """
    batch, new_queries = q.shape[:2]
    rows = _rows(k_cache, batch, cache_batch_idx, block_table)
    before = _lengths(cache_seqlens, batch, rows.shape[1], q.device)
    left = torch.zeros_like(before) if cache_leftpad is None else cache_leftpad.long()
    if rotary_cos is not None and rotary_sin is not None:
        moving = causal or window_size != (-1, -1)
        q = _rotated(q, rotary_cos, rotary_sin, before, rotary_interleaved, moving)
        if k is not None:
            k = _rotated(k, rotary_cos, rotary_sin, before, rotary_interleaved, True)
    after = before
    if k is not None and v is not None:
        place = before[:, None] + torch.arange(k.shape[1], device=q.device)
        target = rows.gather(1, place)
        for cache, tokens in ((k_cache, k), (v_cache, v)):
            # Not by a flat view: of a cache whose memory is not in order, that is a copy.
            cache[target // cache.shape[1], target % cache.shape[1]] = tokens.to(cache.dtype)
        after = before + k.shape[1]
    if capturing(q) and not softcap and alibi_slopes is None and cache_leftpad is None:
        keys, values = (cache.flatten(0, 1)[rows] for cache in (k_cache, v_cache))
        form: Any = {"causal": causal, "window": window_size, "scale": softmax_scale}
        return cached(q, keys, values, after, return_lse=return_softmax_lse, **form)
    ends = torch.nn.functional.pad((after - left).cumsum(0), (1, 0)).to(torch.int32)
    place = torch.arange(rows.shape[1], device=q.device)
    real = (place >= left[:, None]) & (place < after[:, None])
    keys, values = (cache.flatten(0, 1)[rows[real]] for cache in (k_cache, v_cache))
    starts = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * new_queries
    options = options_of(
        "TND",
        scale=softmax_scale,
        causal=causal,
        window=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        return_lse=return_softmax_lse,
        cu_seqlens_q=starts,
        cu_seqlens_k=ends,
    )
    result = kernel(ATTENTION)(q.flatten(0, 1), keys, values, options)
    if isinstance(result, torch.Tensor):
        return result.unflatten(0, (batch, -1))
    output, lse = result
    return output.unflatten(0, (batch, -1)), lse.unflatten(-1, (batch, -1)).transpose(0, 1)


def _rows(
    cache: torch.Tensor,
    batch: int,
    batch_idx: torch.Tensor | None,
    block_table: torch.Tensor | None,
) -> torch.Tensor:
    """int64 [b, s]: where each sequence's tokens are in the cache's rows."""
    size = cache.shape[1]
    inside = torch.arange(size, device=cache.device)
    if block_table is not None:
        return (block_table.long()[:, :, None] * size + inside).flatten(1)
    first = torch.arange(batch, device=cache.device) if batch_idx is None else batch_idx.long()
    return first[:, None] * size + inside


def _lengths(
    given: int | torch.Tensor | None, batch: int, longest: int, device: torch.device
) -> torch.Tensor:
    if isinstance(given, torch.Tensor):
        return given.long()
    return torch.full((batch,), longest if given is None else given, device=device)


def _rotated(
    tokens: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    offsets: torch.Tensor,
    interleaved: bool,
    moving: bool,
) -> torch.Tensor:
    """Tokens at ``offsets`` and on; all at the offset itself if not ``moving``."""
    if moving:
        return apply_rotary_emb(tokens, cos, sin, interleaved, seqlen_offsets=offsets)
    batch = tokens.shape[0]
    together = tokens.reshape(batch, 1, -1, tokens.shape[-1])
    turned = apply_rotary_emb(together, cos, sin, interleaved, seqlen_offsets=offsets)
    return turned.reshape(tokens.shape)
