"""Gathering a sequence that is spread over ranks, differentiable."""

from __future__ import annotations

from typing import Any

import torch

from ..distributed import gather_along_first_dim, reduce_scatter_along_first_dim


class _GatherFromSequence(torch.autograd.Function):
    """[s, ...] of each rank -> [p s, ...]; gradients are summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return gather_along_first_dim(x, group)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return reduce_scatter_along_first_dim(gradients[0], ctx.group)[0], None


def gather_from_sequence(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Every rank's x [s, ...]: [p s, ...]; the gradient is the sum of all ranks' for its part."""
    whole: torch.Tensor = _GatherFromSequence.apply(x, group)  # type: ignore[no-untyped-call]
    return whole
