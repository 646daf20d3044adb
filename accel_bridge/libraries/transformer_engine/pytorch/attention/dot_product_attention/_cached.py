"""One attention call over cached keys and values.

Legend: b sequences, sq new queries, sk room of a sequence's cache, n query heads, g key heads, d
head size, dv of values, t new tokens of a step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, cast

import torch

from accel_bridge.kernels import (
    Attend,
    AttentionMask,
    AttentionOptions,
    Sequences,
    SequenceSplit,
    packed_context_parallel_attention,
)

from .._kv_caches import places_of
from ._call import LAYOUTS
from ._masks import get_full_cu_seqlens, get_full_mask, get_padding_mask

_FORMATS: Final = {layout: name for name, layout in LAYOUTS.items()}
#: No exchange, no gathering.
_WHOLE: Final = SequenceSplit()


def attend_cached(
    kernel: Attend,
    query: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    options: AttentionOptions,
    lengths: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Attention of a step's new queries over cached keys and values.

    :param query: in the options' layout; its padding is behind each sequence's new tokens.
    :param caches: [b, s, g, d] and [b, s, g, dv].
    :param lengths: cumulative, of queries and of cached tokens: int32 [at least b + 1].
    """
    batch, room = caches[0].shape[:2]
    layout = options.layout
    cu_queries, cu_keys = (ends[: batch + 1] for ends in lengths)
    padded = None
    if layout != "TND":
        rows = query.transpose(0, 1) if layout == "SBHD" else query
        padded = get_full_cu_seqlens(batch, rows.shape[1], query.device)
        query = rows.flatten(0, 1)
    sequences = Sequences(
        cu_queries, cu_keys, padded, get_full_cu_seqlens(batch, room, query.device)
    )
    keys, values = (cache.flatten(0, 1) for cache in caches)
    options = replace(options, layout="TND")
    output = packed_context_parallel_attention(
        kernel, query, keys, values, options, sequences, _WHOLE
    ).flatten(-2)
    if layout == "TND":
        return output
    output = torch.unflatten(output, 0, (batch, -1))
    return output.transpose(0, 1).contiguous() if layout == "SBHD" else output


def attend_cached_by_mask(
    kernel: Attend,
    query: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    options: AttentionOptions,
    lengths: tuple[torch.Tensor, torch.Tensor],
    longest: int,
) -> torch.Tensor:
    """As :func:`attend_cached`, for a graph's capture: no shape depends on the lengths.

    Each new query is compared with the whole cache, and a mask hides what is no token.

    :param longest: most new tokens of a sequence.
    """
    batch, sk = caches[0].shape[:2]
    layout, total = options.layout, query.shape[0]
    cu_queries, cu_keys = (ends[: batch + 1] for ends in lengths)
    sequence, place = places_of(query, cu_queries, _FORMATS[layout])
    if layout == "TND":
        columns = torch.arange(longest, device=query.device)
        query = query[(cu_queries[:-1, None] + columns).clamp(max=total - 1)]
    elif layout == "SBHD":
        query = query.transpose(0, 1)
    hidden = get_padding_mask(
        batch, cu_queries, cu_keys, query.shape[1], sk, attention_type="cross"
    )
    kind = "padding_causal_bottom_right" if options.mask.causal else "padding"
    ends = options.mask.window or (None, None)
    window = cast(tuple[int, int], tuple(-1 if end is None else end for end in ends))
    aligned = options.mask.alignment == "bottom_right"
    mask = get_full_mask(query.shape[1], sk, kind, hidden, window, bottom_right_alignment=aligned)[
        1
    ]
    options = replace(options, layout="BSHD", mask=AttentionMask(masked=mask))
    output = cast(torch.Tensor, kernel(query, *caches, options)).flatten(-2)
    if layout == "SBHD":
        return output.transpose(0, 1).contiguous()
    if layout == "BSHD":
        return output
    real = place < cu_queries.diff()[sequence]
    output = output[sequence, place.clamp(max=longest - 1)]
    return output.masked_fill(~real[:, None], 0.0)
