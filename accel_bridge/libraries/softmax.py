"""The softmax of attention scores, forward and backward apart, as compiled extensions have it."""

from __future__ import annotations

import torch

from accel_bridge.kernels import SCALED_MASKED_SOFTMAX
from accel_bridge.kernels.active import kernel


@torch.no_grad()
def forward(
    scores: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | torch.Tensor,
    *,
    causal: bool = False,
) -> torch.Tensor:
    """The contract ``scaled_masked_softmax``; a scale in a tensor is on the host."""
    return kernel(SCALED_MASKED_SOFTMAX)(scores, mask, scale=float(scale), causal=causal)


@torch.no_grad()
def backward(
    gradient: torch.Tensor, weights: torch.Tensor, scale: float | torch.Tensor
) -> torch.Tensor:
    """``scale * weights * (gradient - sum(gradient * weights))``, in the weights' dtype.

    Hidden scores have no weight, so no gradient.

    :param gradient: [..., sq, sk], of the weights.
    :param weights: [..., sq, sk], what :func:`forward` gave.
    """
    factor = float(scale)
    result = torch._softmax_backward_data(gradient.contiguous(), weights, -1, weights.dtype)
    return result if factor == 1.0 else result.mul_(factor)
