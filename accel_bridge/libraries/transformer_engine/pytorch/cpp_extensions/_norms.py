"""Norms with the statistics that their backward passes need.

Legend: ... any leading dimensions (rows), h hidden size.
"""

from __future__ import annotations

from typing import Any

import torch

from accel_bridge.kernels import LAYER_NORM, RMS_NORM, active, compute_dtype, gamma

from ..constants import TE_DType_To_Torch
from ._enums import DType


def _finished(output: torch.Tensor, ln_out: Any, quantizer: Any, otype: DType) -> Any:
    """The output in its dtype, quantized or put where it is wanted."""
    output = output.to(TE_DType_To_Torch[otype])
    if quantizer is not None:
        return quantizer.quantize(output, out=ln_out)
    return output if ln_out is None else ln_out.copy_(output)


@torch.no_grad()
def layernorm_fwd(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    otype: DType,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Any]:
    """[output, mean [rows], 1 / deviation [rows]] of rows [..., h]."""
    output = active.kernel(LAYER_NORM)(
        input, weight, bias, eps=eps, zero_centered_gamma=zero_centered_gamma
    )
    x = input.to(compute_dtype(input)).reshape(-1, input.shape[-1])
    variance, mean = torch.var_mean(x, -1, correction=0)
    done = _finished(output, ln_out, quantizer, otype)
    return [done, mean, torch.rsqrt(variance + eps)]


@torch.no_grad()
def rmsnorm_fwd(
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    otype: DType,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Any]:
    """[output, None, 1 / root mean square [rows]] of rows [..., h]."""
    output = active.kernel(RMS_NORM)(
        input, weight, eps=eps, zero_centered_gamma=zero_centered_gamma
    )
    x = input.to(compute_dtype(input)).reshape(-1, input.shape[-1])
    done = _finished(output, ln_out, quantizer, otype)
    return [done, None, torch.rsqrt(x.square().mean(-1) + eps)]


def _scaled_gradient(
    dz: torch.Tensor, weight: torch.Tensor, zero_centered_gamma: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """(dz, dz * gamma) as matrices in ``dtype``."""
    gradient = dz.to(dtype).reshape(-1, dz.shape[-1])
    return gradient, gradient * gamma(weight, zero_centered_gamma, dtype)


@torch.no_grad()
def layernorm_bwd(
    dz: torch.Tensor,
    x: torch.Tensor,
    mu: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[torch.Tensor]:
    """[dx, dgamma, dbeta] from the statistics of :func:`layernorm_fwd`."""
    dtype = compute_dtype(x)
    dz_wide, scaled = _scaled_gradient(dz, gamma, zero_centered_gamma, dtype)
    normal = (x.to(dtype).reshape(scaled.shape) - mu[:, None]) * rsigma[:, None]
    mean = scaled.mean(-1, keepdim=True)
    along = (scaled * normal).mean(-1, keepdim=True)
    dx = (scaled - mean - normal * along) * rsigma[:, None]
    sums = ((dz_wide * normal).sum(0), dz_wide.sum(0))
    return [dx.to(x.dtype).view(x.shape), *(total.to(gamma.dtype) for total in sums)]


@torch.no_grad()
def rmsnorm_bwd(
    dz: torch.Tensor,
    x: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[torch.Tensor]:
    """[dx, dgamma] from the statistics of :func:`rmsnorm_fwd`."""
    dtype = compute_dtype(x)
    dz_wide, scaled = _scaled_gradient(dz, gamma, zero_centered_gamma, dtype)
    normal = x.to(dtype).reshape(scaled.shape) * rsigma[:, None]
    along = (scaled * normal).mean(-1, keepdim=True)
    dx = (scaled - normal * along) * rsigma[:, None]
    return [dx.to(x.dtype).view(x.shape), (dz_wide * normal).sum(0).to(gamma.dtype)]


def rmsnorm_bwd_add(
    dz: torch.Tensor,
    x: torch.Tensor,
    add: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[torch.Tensor]:
    """[dx + add, dgamma]."""
    dx, dgamma = rmsnorm_bwd(dz, x, rsigma, gamma, sm_margin, zero_centered_gamma)
    return [dx.add_(add), dgamma]
