"""Maps of rows, and sums over the copies of a token.

A map of a mask is int64 [2, m]: the token and the expert of each copy; token t for padding.

Legend: t tokens, e experts, h hidden size, k experts per token, m copies.
"""

from __future__ import annotations

import torch

from accel_bridge.kernels import TOKEN_UNPERMUTE
from accel_bridge.libraries.serving import kernel


def rows_of_mask(
    routing_map: torch.Tensor, copies: int, pad_offsets: torch.Tensor | None
) -> torch.Tensor:
    """Token and expert of each row, int64 [2, m]; token t where a row has no source."""
    tokens, experts = routing_map.shape
    routed = routing_map.t().reshape(-1).bool()
    place = routed.cumsum(0) - 1
    if pad_offsets is not None:
        place = (place.view(experts, tokens) + pad_offsets.unsqueeze(-1)).view(-1)
    place = place.masked_fill(~routed, copies).clamp_(max=copies)
    pairs = torch.arange(tokens * experts, device=routed.device)
    rows = pairs.new_zeros(2, copies + 1)
    rows[0].fill_(tokens).scatter_(0, place, pairs % tokens)
    rows[1].scatter_(0, place, pairs // tokens)
    return rows[:, :copies]


def sources(
    rows: torch.Tensor, tokens: int, padded: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The token of each row, and which rows are padding."""
    if not padded:
        return rows[0], None
    return rows[0].clamp(max=tokens - 1), rows[0] == tokens


def of_copies(probs: torch.Tensor, rows: torch.Tensor, padded: bool) -> torch.Tensor:
    """The weight of each row from [t, e]."""
    tokens, padding = sources(rows, probs.size(0), padded)
    weights = probs.reshape(-1).index_select(0, tokens * probs.size(1) + rows[1])
    return weights if padding is None else weights.masked_fill_(padding, 0)


def to_copies(weights: torch.Tensor, rows: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """[t, e] from the weight of each row, zeros elsewhere."""
    tokens, experts = shape
    # Padding goes to a token that does not exist.
    flat = weights.new_zeros((tokens + 1) * experts)
    flat.scatter_(0, rows[0] * experts + rows[1], weights)
    return flat[: tokens * experts].view(shape)


def merge(
    copies: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor | None,
    tokens: int,
    padded: bool,
) -> torch.Tensor:
    """The sum of each token's rows, in float32."""
    if weights is not None:
        weights = weights.float()
    elif copies.dtype is not torch.float32:
        weights = torch.ones(copies.size(0), dtype=torch.float32, device=copies.device)
    merged = kernel(TOKEN_UNPERMUTE)(copies, rows[0], weights, num_tokens=tokens + padded)
    return merged[:tokens] if padded else merged


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
