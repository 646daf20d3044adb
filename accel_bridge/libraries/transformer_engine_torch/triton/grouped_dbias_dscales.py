"""Transformer Engine's Triton kernel of the gradients of grouped biases, without Triton.

Legend: t tokens, h hidden size, g groups.
"""

from __future__ import annotations

import torch


def compute_grouped_dbias(
    dy: torch.Tensor, offsets: torch.Tensor, num_groups: int, dbias: torch.Tensor | None = None
) -> torch.Tensor:
    """float32 [g, h]: the sum of each group's rows of ``dy`` [t, h], added to ``dbias``.

    :param offsets: int64 [g + 1], cumulative rows with the leading 0.
    """
    if dbias is None:
        dbias = dy.new_zeros(num_groups, dy.shape[1], dtype=torch.float32)
    return dbias.index_add_(0, _groups(dy, offsets), dy.float())


def compute_grouped_dbias_dscales(
    dy: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor,
    offsets: torch.Tensor,
    dbias: torch.Tensor | None = None,
    dscales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of biases [g, h] and of the rows' scales [t], both float32, added to those given.

    :param scales: float32 [t], the factor of each row's bias.
    """
    wide = dy.float()
    dbias = compute_grouped_dbias(wide * scales.unsqueeze(-1), offsets, bias.shape[0], dbias)
    products = (wide * bias.float().index_select(0, _groups(dy, offsets))).sum(-1)
    return dbias, products if dscales is None else dscales.add_(products)


def _groups(dy: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """int64 [t]: the group of each row."""
    row = torch.arange(dy.shape[0], device=dy.device)
    found = torch.searchsorted(offsets[1:].contiguous(), row, right=True)
    return found.clamp_(max=offsets.numel() - 2)
