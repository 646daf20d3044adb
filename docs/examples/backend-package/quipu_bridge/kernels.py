"""The kernels, each by a contract of accel_bridge.kernels.

A contract without a kernel of the Quipu's own is served by its reference, which runs on every
device that torch knows.
"""

from __future__ import annotations

from typing import Any

import torch

from accel_bridge.kernels import CONTRACTS, RMS_NORM, Kernels, gamma, reference_kernel


class KnottedNorm(torch.autograd.Function):
    """RMSNorm in two passes over the rows, forwards and backwards; sums are in float32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: torch.Tensor, eps: float) -> torch.Tensor:
        """x and the result: [..., h] float32; factor: [h] float32."""
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, factor, scale)
        return x * scale * factor

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Gradients of x [..., h] and of the factor [h]."""
        x, factor, scale = ctx.saved_tensors
        (gradient,) = gradients
        normal = x * scale
        part = gradient * factor
        to_x = scale * (part - normal * (part * normal).mean(-1, keepdim=True))
        to_factor = (gradient * normal).flatten(0, -2).sum(0) if x.dim() > 1 else gradient * normal
        return to_x, to_factor, None


def rms_norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
    zero_centered_gamma: bool = False,
) -> torch.Tensor:
    """The contract ``rms_norm``: input [..., h], weight [h], result [..., h]."""
    factor = gamma(weight, zero_centered_gamma, torch.float32)
    output: torch.Tensor = KnottedNorm.apply(input.float(), factor, eps)
    return output.to(input.dtype)


def in_float32(*args: Any, **options: Any) -> str | None:
    """None if the kernel serves the call, otherwise the reason that the log gives."""
    if any(isinstance(value, torch.Tensor) and value.dtype == torch.float64 for value in args):
        return "the Quipu computes in float32"
    return None


KERNELS = Kernels(
    *(reference_kernel(contract, "no knots for it yet") for contract in CONTRACTS.values())
).replaced(
    RMS_NORM.kernel(
        rms_norm,
        why="two passes forwards and backwards, sums in float32",
        supports=in_float32,
        source="quipu_bridge",
    ),
)
