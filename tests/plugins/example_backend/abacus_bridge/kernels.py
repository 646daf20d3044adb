"""The kernels, each by a contract of accel_bridge.kernels."""

from __future__ import annotations

import torch
from torch.nn import functional

from accel_bridge.kernels import RMS_NORM, Kernels, gamma


def rms_norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
    zero_centered_gamma: bool = False,
) -> torch.Tensor:
    """The contract ``rms_norm``: input [..., h], weight [h], result [..., h]."""
    scale = gamma(weight, zero_centered_gamma, torch.float32)
    return functional.rms_norm(input.float(), scale.shape, scale, eps).to(input.dtype)


def few_columns(
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
    zero_centered_gamma: bool = False,
) -> str | None:
    """None if the kernel serves the call, otherwise the reason that the log gives."""
    if input.dtype == torch.float64:
        return "the Abacus computes in float32"
    return None if input.shape[-1] <= 65536 else "the Abacus has 65536 beads"


KERNELS = Kernels(
    RMS_NORM.kernel(
        rms_norm,
        why="torch's fused RMSNorm, with float32 sums",
        supports=few_columns,
        source="abacus_bridge",
    )
)
