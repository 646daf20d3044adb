"""Tokens to their experts and back by lists of experts, as the extension has it.

A map of rows is int32 [k * t]: the row of each token's first, second, ... copy, -1 where it was
dropped. Nothing waits for the device.

Legend: t tokens, h hidden size, k experts per token, m copies.
"""

from __future__ import annotations

from typing import Any

import torch


def moe_permute_fwd(
    input: torch.Tensor,
    dtype: Any,
    indices: torch.Tensor,
    num_out_tokens: int,
    workspace: list[torch.Tensor],
    max_expanded_token_num: int,
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Copies of the tokens in the order (expert, token).

    :param input: [t, h], any dtype; bytes of FP8 too.
    :param indices: int32 [t, k], the experts of a token.
    :param num_out_tokens: m; 0 or less: all of t * k.
    :param workspace: of the compiled extension's sort; returned as it is.
    :returns: copies [m, h], the map of rows, the workspace.
    """
    tokens, choices = indices.shape
    order = indices.reshape(-1).argsort(stable=True)
    rows = torch.empty_like(order)
    rows[order] = torch.arange(order.numel(), device=order.device)
    if num_out_tokens > 0:
        order = order[:num_out_tokens]
        rows = rows.masked_fill(rows >= num_out_tokens, -1)
    rows = rows.view(tokens, choices).t().reshape(-1).to(torch.int32)
    return input.index_select(0, order // choices), rows, workspace


def moe_permute_bwd(
    input: torch.Tensor,
    dtype: Any,
    row_id_map: torch.Tensor,
    prob: torch.Tensor,
    num_tokens: int,
    topK: int,
) -> torch.Tensor:
    """The sum [t, h] of each token's copies; with weights [t, k] unless ``prob`` is empty."""
    return moe_unpermute_fwd(input, dtype, row_id_map, prob, num_tokens, topK)


def moe_unpermute_fwd(
    input: torch.Tensor,
    dtype: Any,
    row_id_map: torch.Tensor,
    prob: torch.Tensor,
    num_tokens: int,
    topK: int,
) -> torch.Tensor:
    """The weighted sum [t, h] of each token's copies [m, h], in float32 and rounded once."""
    total: torch.Tensor | None = None
    for choice, rows in enumerate(row_id_map.view(topK, num_tokens)):
        values = input.index_select(0, rows.clamp(min=0)).float()
        values = values.masked_fill_((rows < 0).unsqueeze(-1), 0.0)
        if prob.numel():
            values *= prob[:, choice].float().unsqueeze(-1)
        total = values if total is None else total.add_(values)
    assert total is not None, "a map with no choices"
    return total.to(input.dtype)


def moe_unpermute_bwd(
    input_bwd: torch.Tensor,
    input_fwd: torch.Tensor,
    dtype: Any,
    row_id_map: torch.Tensor,
    prob: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of the copies [m, h] and of the weights, float32 [t, k]."""
    tokens, choices = prob.shape if prob.numel() else (row_id_map.numel(), 1)
    gradient, of_copies = input_bwd.float(), torch.zeros_like(input_fwd)
    of_weights = []
    for choice, rows in enumerate(row_id_map.view(choices, tokens)):
        dropped, places = rows < 0, rows.clamp(min=0)
        values = input_fwd.index_select(0, places).float()
        of_weights.append((gradient * values).sum(-1).masked_fill(dropped, 0.0))
        share = gradient * prob[:, choice].float().unsqueeze(-1) if prob.numel() else gradient
        # A row belongs to one token, but for those that were dropped, which add nothing.
        share = share.masked_fill(dropped.unsqueeze(-1), 0.0).to(of_copies.dtype)
        of_copies.index_add_(0, places, share)
    return of_copies, torch.stack(of_weights, -1)
