"""LayerNorm and RMSNorm, forward and backward, with the statistics between them.

Legend: ... any leading dimensions (rows), h hidden size.
Source: normalization.cpp of Transformer Engine 2.8 to 2.20.
"""

from __future__ import annotations

from typing import Any

import torch

from accel_bridge.kernels import NORM_BACKWARD, NORM_FORWARD, active
from accel_bridge.libraries.transformer_engine_torch.enums import TORCH_DTYPE


def _finished(output: torch.Tensor, ln_out: Any, quantizer: Any, otype: int) -> Any:
    """The output in its dtype, quantized or put where it is wanted."""
    output = output.to(TORCH_DTYPE[otype])
    if quantizer is not None:
        from accel_bridge.libraries.transformer_engine_torch.quantize import quantize

        return quantize(output, quantizer, ln_out)
    return output if ln_out is None else ln_out.copy_(output)


@torch.no_grad()
def layernorm_fwd(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    otype: int,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Any]:
    """[output, mean [rows], 1 / deviation [rows]] of rows [..., h]; statistics in float32."""
    output, mean, rsigma = active.kernel(NORM_FORWARD)(
        input, weight, bias, eps=eps, zero_centered_gamma=zero_centered_gamma, centered=True
    )
    return [_finished(output, ln_out, quantizer, otype), mean, rsigma]


@torch.no_grad()
def rmsnorm_fwd(
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    otype: int,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Any]:
    """[output, None, 1 / root mean square [rows]] of rows [..., h]."""
    output, _, rsigma = active.kernel(NORM_FORWARD)(
        input, weight, None, eps=eps, zero_centered_gamma=zero_centered_gamma, centered=False
    )
    return [_finished(output, ln_out, quantizer, otype), None, rsigma]


@torch.no_grad()
def layernorm_bwd(
    dz: torch.Tensor,
    x: torch.Tensor,
    mu: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[torch.Tensor | None]:
    """[dx, dgamma, dbeta] from the statistics of :func:`layernorm_fwd`."""
    return list(
        active.kernel(NORM_BACKWARD)(
            dz, x, gamma, mu, rsigma, zero_centered_gamma=zero_centered_gamma
        )
    )


@torch.no_grad()
def rmsnorm_bwd(
    dz: torch.Tensor,
    x: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[torch.Tensor | None]:
    """[dx, dgamma] from the statistics of :func:`rmsnorm_fwd`."""
    return list(
        active.kernel(NORM_BACKWARD)(
            dz, x, gamma, None, rsigma, zero_centered_gamma=zero_centered_gamma
        )
    )[:2]


def rmsnorm_bwd_add(
    dz: torch.Tensor,
    x: torch.Tensor,
    add: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[torch.Tensor | None]:
    """[dx + add, dgamma], the sum rounded once."""
    wide = dz.float(), x.float()
    dx, dgamma = rmsnorm_bwd(*wide, rsigma, gamma, sm_margin, zero_centered_gamma)
    assert dx is not None
    return [dx.add_(add.view(dx.shape)).to(x.dtype), dgamma]
