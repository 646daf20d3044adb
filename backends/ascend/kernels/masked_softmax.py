"""Scaled and masked softmax on ``npu_scaled_masked_softmax``."""

from __future__ import annotations

from typing import Final

import torch

from accel_bridge.backends.ascend import limits
from accel_bridge.kernels import SCALED_MASKED_SOFTMAX, AttentionMask


def scaled_masked_softmax(
    scores: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    scale: float = 1.0,
    causal: bool = False,
) -> torch.Tensor:
    """The contract ``scaled_masked_softmax``."""
    sq, sk = scores.shape[-2:]
    hidden = AttentionMask(causal=causal, masked=mask).hidden(sq, sk, scores.device)
    if hidden is None:
        hidden = torch.zeros(1, 1, sq, sk, dtype=torch.bool, device=scores.device)
    while hidden.dim() < 4:
        hidden = hidden.unsqueeze(0)
    output: torch.Tensor = torch.ops.npu.npu_scaled_masked_softmax(
        scores, hidden.expand(-1, -1, sq, sk).contiguous(), scale, False
    )
    if mask is None and sq <= sk:
        return output
    # The operator masks with a finite number: a row that sees nothing would be an average.
    return output.masked_fill(hidden.all(-1, keepdim=True), 0.0)


def _supports(
    scores: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    scale: float = 1.0,
    causal: bool = False,
) -> str | None:
    rules, name = limits.here(), "npu_scaled_masked_softmax"
    if found := rules.dtype_objection(name, scores):
        return found
    if scores.dim() != 4:
        return f"{name}: 4 dimensions, not {scores.dim()}"
    return rules.objection(name, *(("side", side) for side in scores.shape[-2:]))


KERNELS: Final = (
    SCALED_MASKED_SOFTMAX.kernel(
        scaled_masked_softmax,
        "one pass, float32 inside",
        _supports,
        "torch_npu.npu_scaled_masked_softmax",
    ),
)
