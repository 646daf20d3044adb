"""Mamba-1's selective scan in torch's operators, for mamba_ssm and the extension under it.

Legend: b batch, d channels, s sequence length, n state size, g groups.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from accel_bridge.errors import BridgeError
from accel_bridge.kernels import compute_dtype


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
