"""AdamW in one pass over each tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from accel_bridge.backends.ascend.kernels import limits
from accel_bridge.kernels import Kernel


@torch.no_grad()
def adamw(
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    first_moments: Sequence[torch.Tensor],
    second_moments: Sequence[torch.Tensor],
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """The contract ``adamw``."""
    if not parameters:
        return
    # torch_npu takes 1 off again, and writes to no step.
    count = torch.tensor(float(step), device=parameters[0].device)
    torch._fused_adamw_(
        list(parameters),
        list(gradients),
        list(first_moments),
        list(second_moments),
        [],
        [count] * len(parameters),
        lr=lr,
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=weight_decay,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )


def _supports(
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    first_moments: Sequence[torch.Tensor],
    second_moments: Sequence[torch.Tensor],
    **options: object,
) -> str | None:
    every = (*parameters, *gradients, *first_moments, *second_moments)
    if any(tensor.dtype != torch.float32 for tensor in every):
        return "aclnnApplyAdamWV2 is used for float32 only"
    return limits.dtype_objection("aclnnApplyAdamWV2", *every)


ADAMW = Kernel("adamw", adamw, "one pass over each tensor", _supports, "torch._fused_adamw_")
