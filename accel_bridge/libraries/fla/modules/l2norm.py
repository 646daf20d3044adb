"""Vectors of length one."""

from __future__ import annotations

import torch

from accel_bridge.kernels import compute_dtype


def l2norm(
    x: torch.Tensor, eps: float = 1e-6, output_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """``x / sqrt(sum(x^2) + eps)`` over the last dimension, in float32, rounded once at the end.

    :param x: [..., d].
    :param eps: added to the sum of squares.
    :param output_dtype: default the dtype of ``x``.
    """
    wide = x.to(compute_dtype(x))
    normal = wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)
    return normal.to(output_dtype or x.dtype)


l2_norm = l2norm


class L2Norm(torch.nn.Module):
    """:func:`l2norm` as a module."""

    def __init__(self, eps: float = 1e-6, output_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.eps = eps
        self.output_dtype = output_dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., d], as ``x``."""
        return l2norm(x, self.eps, self.output_dtype)
