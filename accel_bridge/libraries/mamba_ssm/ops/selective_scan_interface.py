"""Mamba-1's scan, alone and with everything around it, in torch's operators.

Legend: b batch, d channels, s sequence length, n state size, g groups, r rank of the step.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from accel_bridge.errors import BridgeError
from accel_bridge.kernels import CAUSAL_CONVOLUTION, compute_dtype
from accel_bridge.kernels.active import kernel

__all__ = ["mamba_inner_fn", "mamba_inner_ref", "selective_scan_fn", "selective_scan_ref"]


def selective_scan_fn(
    u: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """``S_t = exp(delta_t A) S_{t-1} + delta_t u_t B_t``, ``y_t = S_t C_t + D u_t``, gated by z.

    Computed in float32, step by step (Gu and Dao 2023, arXiv:2312.00752, algorithm 2).

    :param u: [b, d, s]; delta and z too.
    :param A: [d, n], real.
    :param B: [d, n], [b, n, s] or [b, g, n, s]; C too.
    :param D: [d]; ``delta_bias`` too, added before the softplus.
    :returns: [b, d, s] in u's dtype; with ``return_last_state`` also float32 [b, d, n].
    :raises BridgeError: a complex A.
    """
    if A.is_complex():
        raise BridgeError(
            "The selective scan takes a real A here.",
            evidence=f"A is {A.dtype}",
            next="use the model's own scan (Transformers: use_mambapy, or its slow path)",
        )
    dtype = compute_dtype(u)
    step, values = delta.to(dtype), u.to(dtype)
    if delta_bias is not None:
        step = step + delta_bias.to(dtype)[:, None]
    if delta_softplus:
        step = functional.softplus(step)
    write, read = (_by_step(one.to(dtype), u.shape) for one in (B, C))
    decays = torch.exp(step.unsqueeze(-1) * A.to(dtype)[:, None])  # [b, d, s, n]
    added = (step * values).unsqueeze(-1) * write
    state = added.new_zeros(added.shape[0], added.shape[1], added.shape[3])
    states = []
    for decay, more in zip(decays.unbind(2), added.unbind(2), strict=True):
        state = decay * state + more
        states.append(state)
    output = (torch.stack(states, 2) * read).sum(-1) if states else torch.zeros_like(values)
    if D is not None:
        output = output + values * D.to(dtype)[:, None]
    if z is not None:
        output = output * functional.silu(z.to(dtype))
    output = output.to(u.dtype)
    return (output, state) if return_last_state else output


def _by_step(matrix: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """[b or 1, d or 1, s or 1, n] of B or C."""
    if matrix.dim() == 2:
        return matrix[None, :, None]
    if matrix.dim() == 3:
        return matrix.transpose(1, 2).unsqueeze(1)
    return matrix.repeat_interleave(size[1] // matrix.shape[1], 1).transpose(2, 3)


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
