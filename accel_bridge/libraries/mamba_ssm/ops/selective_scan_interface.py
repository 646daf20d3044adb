"""Mamba-1's scan, alone and with everything around it, in torch's operators.

Legend: b batch, d channels, s sequence length, n state size, g groups, r rank of the step.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from accel_bridge.kernels import CAUSAL_CONVOLUTION, compute_dtype
from accel_bridge.kernels.active import kernel
from accel_bridge.libraries.selective_scan import selective_scan_fn

__all__ = ["mamba_inner_fn", "mamba_inner_ref", "selective_scan_fn", "selective_scan_ref"]


def mamba_inner_fn(
    xz: torch.Tensor,
    conv1d_weight: torch.Tensor,
    conv1d_bias: torch.Tensor | None,
    x_proj_weight: torch.Tensor,
    delta_proj_weight: torch.Tensor,
    out_proj_weight: torch.Tensor,
    out_proj_bias: torch.Tensor | None,
    A: torch.Tensor,
    B: torch.Tensor | None = None,
    C: torch.Tensor | None = None,
    D: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    B_proj_bias: torch.Tensor | None = None,
    C_proj_bias: torch.Tensor | None = None,
    delta_softplus: bool = True,
    checkpoint_lvl: int = 1,
    b_rms_weight: torch.Tensor | None = None,
    c_rms_weight: torch.Tensor | None = None,
    dt_rms_weight: torch.Tensor | None = None,
    b_c_dt_rms_eps: float = 1e-6,
) -> torch.Tensor:
    """Convolution, projections, scan and output projection of a Mamba-1 layer.

    :param xz: [b, 2 d, s], the values and their gate.
    :param conv1d_weight: [d, 1, w].
    :param x_proj_weight: [r + 2 n, d].
    :param delta_proj_weight: [d, r].
    :param out_proj_weight: [h, d].
    :param A: [d, n].
    :param B: as of :func:`selective_scan_fn`; None to project it from the values. C too.
    :param b_rms_weight: [n], or [1] for an RMSNorm of B without a weight of its own (FalconMamba);
        ``c_rms_weight`` for C, ``dt_rms_weight`` [r] for the step.
    :returns: [b, s, h].
    """
    x, z = xz.chunk(2, dim=1)
    x = kernel(CAUSAL_CONVOLUTION)(x, conv1d_weight.squeeze(1), conv1d_bias, silu=True)
    projected = functional.linear(x.transpose(1, 2), x_proj_weight)  # [b, s, r + 2 n]
    n, rank = A.shape[1], delta_proj_weight.shape[1]
    step, write, read = projected[..., :rank], projected[..., rank : rank + n], projected[..., -n:]

    def normed(values: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        if weight is None:
            return values
        wide = values.to(compute_dtype(values))
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + b_c_dt_rms_eps)
        return (wide * weight.to(wide.dtype)).to(values.dtype)

    delta = functional.linear(normed(step, dt_rms_weight), delta_proj_weight).transpose(1, 2)
    if B is None:
        B = write if B_proj_bias is None else write + B_proj_bias.to(write.dtype)
        B = normed(B, b_rms_weight).transpose(1, 2)
    if C is None:
        C = read if C_proj_bias is None else read + C_proj_bias.to(read.dtype)
        C = normed(C, c_rms_weight).transpose(1, 2)
    output = selective_scan_fn(x, delta, A, B, C, D, z, delta_bias, delta_softplus)
    assert isinstance(output, torch.Tensor)
    return functional.linear(output.transpose(1, 2), out_proj_weight, out_proj_bias)


selective_scan_ref, mamba_inner_ref = selective_scan_fn, mamba_inner_fn
