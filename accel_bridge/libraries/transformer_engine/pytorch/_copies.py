"""Copies of rows of FP8 tensors, and sums over the choices of a token.

Legend: t tokens, e experts, h hidden size, k experts per token, m copies.
"""

from __future__ import annotations

import torch

from accel_bridge.kernels.token_permute import pairs_of_rows, rows_of_map

from ._fp8_rows import select_rows


def copies_of_fp8(
    tensor: torch.Tensor,
    routing_map: torch.Tensor,
    probs: torch.Tensor | None,
    copies: int,
    pad_offsets: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """The contract ``token_permute`` for FP8 tensors, whose bytes and scales are moved."""
    tokens, experts = routing_map.shape
    rows = rows_of_map(routing_map, copies, pad_offsets)
    pairs = pairs_of_rows(rows, copies)
    blank = None if pad_offsets is None else pairs == tokens * experts
    weights = None
    if probs is not None:
        weights = probs.reshape(-1).index_select(0, pairs.clamp(max=tokens * experts - 1))
        weights = weights if blank is None else weights.masked_fill(blank, 0)
    sources = (pairs // experts).clamp(max=tokens - 1)
    return select_rows(tensor, sources, blank), weights, rows


def sum_of_choices(
    copies: torch.Tensor, rows: torch.Tensor, probs: torch.Tensor | None
) -> torch.Tensor:
    """The sum over a token's choices; ``rows`` [k, t] says where each one's copy is."""
    total: torch.Tensor | None = None
    for choice, places in enumerate(rows):
        values = copies.index_select(0, places.clamp(min=0).long()).float()
        values.masked_fill_((places < 0).unsqueeze(-1), 0.0)
        if probs is not None:
            values *= probs[:, choice].float().unsqueeze(-1)
        total = values if total is None else total.add_(values)
    assert total is not None, "a map with no choices"
    return total.to(copies.dtype)
