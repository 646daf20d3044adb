"""Norms of mamba_ssm, on the norms' contracts."""

from __future__ import annotations

import torch

from accel_bridge.kernels import NORM_FORWARD
from accel_bridge.kernels.active import kernel


def _layer_norm_fwd(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    is_rms_norm: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """Output, mean, inverse deviation (float32 [rows]) and x plus ``residual``, of rows [m, h]."""
    added = x if residual is None else (x.float() + residual.float()).to(residual_dtype or x.dtype)
    output, mean, rstd = kernel(NORM_FORWARD)(
        added, weight, bias, eps=eps, centered=not is_rms_norm
    )
    return output.to(out_dtype or x.dtype), mean, rstd, added
