"""AdamW in one pass over each tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from accel_bridge.kernels import ADAMW, AdamWOptions
from accel_bridge.kernels.adamw import scale_in_place, write_copies


@torch.no_grad()
def adamw(
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    first_moments: Sequence[torch.Tensor],
    second_moments: Sequence[torch.Tensor],
    options: AdamWOptions,
    scale: torch.Tensor | None = None,
    copies: Sequence[torch.Tensor] | None = None,
) -> None:
    """The contract ``adamw``."""
    if not parameters:
        return
    scale_in_place(gradients, scale)
    # torch_npu subtracts 1 again and does not write to the step.
    count = torch.tensor(float(options.step), device=parameters[0].device)
    torch._fused_adamw_(
        list(parameters),
        list(gradients),
        list(first_moments),
        list(second_moments),
        [],
        [count] * len(parameters),
        lr=options.lr,
        beta1=options.betas[0],
        beta2=options.betas[1],
        weight_decay=options.weight_decay,
        eps=options.eps,
        amsgrad=False,
        maximize=False,
    )
    write_copies(parameters, copies)


def _supports(
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    first_moments: Sequence[torch.Tensor],
    second_moments: Sequence[torch.Tensor],
    options: AdamWOptions,
    scale: torch.Tensor | None = None,
    copies: Sequence[torch.Tensor] | None = None,
) -> str | None:
    every = (*parameters, *gradients, *first_moments, *second_moments)
    if any(tensor.dtype != torch.float32 for tensor in every):
        return "aclnnApplyAdamWV2 is used for float32 only"
    return None


KERNELS: Final = (
    ADAMW.kernel(adamw, "one pass over each tensor", _supports, "torch._fused_adamw_"),
)
