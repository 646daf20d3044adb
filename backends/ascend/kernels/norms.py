"""RMSNorm and LayerNorm in one pass each, with float32 sums."""

from __future__ import annotations

from typing import Final

import torch
from torch.nn import functional

from accel_bridge.backends.ascend import limits
from accel_bridge.kernels import LAYER_NORM, RMS_NORM, gamma


def rms_norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
    zero_centered_gamma: bool = False,
) -> torch.Tensor:
    """The contract ``rms_norm``; gamma always in float32, which every input dtype may have."""
    factor = gamma(weight, zero_centered_gamma, torch.float32)
    output: torch.Tensor
    if input.dim() == 1:
        output = torch.ops.npu.npu_rms_norm(input.unsqueeze(0), factor, eps)[0].squeeze(0)
    else:
        output = torch.ops.npu.npu_rms_norm(input, factor, eps)[0]
    return output


def layer_norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    eps: float,
    zero_centered_gamma: bool = False,
) -> torch.Tensor:
    """The contract ``layer_norm``."""
    factor = gamma(weight, zero_centered_gamma, input.dtype)
    shift = None if bias is None else bias.to(input.dtype)
    return functional.layer_norm(input, factor.shape, factor, shift, eps)


def _supports(
    input: torch.Tensor, weight: torch.Tensor, *rest: object, **options: object
) -> str | None:
    if input.dim() > 8:
        return f"npu_rms_norm: at most 8 dimensions, not {input.dim()}"
    return limits.here().dtype_objection("npu_rms_norm", input)


KERNELS: Final = (
    RMS_NORM.kernel(rms_norm, "one pass, float32 sums", _supports, "torch_npu.npu_rms_norm"),
    LAYER_NORM.kernel(
        layer_norm, "fused in torch_npu", _supports, "torch.nn.functional.layer_norm"
    ),
)
