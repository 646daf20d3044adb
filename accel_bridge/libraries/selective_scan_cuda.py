"""Shim for the function under Mamba-1's scan: forward and backward apart.

It is the only compiled part of mamba_ssm, which imports it at once; what Mamba-2 needs of the real
mamba_ssm is in Triton, and works above this.

Legend: b batch, d channels, s sequence length, n state size.
Source: mamba_ssm/csrc/selective_scan.
"""

from __future__ import annotations

import torch

from accel_bridge.libraries.mamba_ssm import selective_scan_fn

Tensor = torch.Tensor


@torch.no_grad()
def fwd(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
) -> list[Tensor]:
    """Output [b, d, s], float32 [b, d, 1, 2 n] whose odd places are the last state, gated output.

    Arguments as of ``selective_scan_fn``; the third result is there where ``z`` is.
    """
    output, state = selective_scan_fn(u, delta, A, B, C, D, None, delta_bias, delta_softplus, True)
    states = torch.stack((torch.zeros_like(state), state), -1).flatten(-2).unsqueeze(2)
    if z is None:
        return [output, states]
    return [output, states, output * torch.nn.functional.silu(z)]


def bwd(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    dout: Tensor,
    x: Tensor,
    out: Tensor | None,
    dz: Tensor | None,
    delta_softplus: bool,
    recompute_out_z: bool,
) -> list[Tensor | None]:
    """Gradients of u, delta, A, B, C, D and the bias; of z if it is there; the gated output.

    :param dout: [b, d, s], of the gated output if ``z`` is there.
    :param dz: where to write the gradient of z, or None.
    :param recompute_out_z: return the gated output too.
    """
    leaves = {
        name: None if one is None else one.detach().requires_grad_()
        for name, one in {
            "u": u,
            "delta": delta,
            "A": A,
            "B": B,
            "C": C,
            "D": D,
            "delta_bias": delta_bias,
            "z": z,
        }.items()
    }
    with torch.enable_grad():
        output = selective_scan_fn(**leaves, delta_softplus=delta_softplus)  # type: ignore[arg-type]
    assert isinstance(output, Tensor)
    given = [one for one in leaves.values() if one is not None]
    found = iter(torch.autograd.grad(output, given, dout))
    gradients = [None if one is None else next(found) for one in leaves.values()]
    if z is None:
        return gradients[:-1]
    gradient = gradients.pop()
    assert gradient is not None
    gradients.append(gradient if dz is None else dz.copy_(gradient))
    return [*gradients, output.detach()] if recompute_out_z else gradients
