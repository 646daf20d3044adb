"""AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from accel_bridge.backends.cuda.kernels._choice import LARGE, missing
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
    """The contract ``adamw``; one launch of Triton's where that saves more than it costs."""
    lists = (parameters, gradients, first_moments, second_moments)
    if not parameters:
        return
    if _is_large(parameters) and missing() is None:
        from accel_bridge.backends.cuda.kernels import adamw as by_triton

        if by_triton.adamw(lists, options, scale, copies):
            return
    scale_in_place(gradients, scale)
    # The operator needs a step for each tensor and only reads it: one tensor serves all.
    step = torch.full((), float(options.step), device=parameters[0].device)
    torch._fused_adamw_(
        list(parameters),
        list(gradients),
        list(first_moments),
        list(second_moments),
        [],
        [step] * len(parameters),
        lr=options.lr,
        beta1=options.betas[0],
        beta2=options.betas[1],
        weight_decay=options.weight_decay,
        eps=options.eps,
        amsgrad=False,
        maximize=False,
    )
    write_copies(parameters, copies)


def _is_large(parameters: Sequence[torch.Tensor]) -> bool:
    """Whether memory traffic dominates; a graph that is captured keeps no addresses here."""
    if not parameters[0].is_cuda or torch.cuda.is_current_stream_capturing():
        return False
    return sum(map(torch.Tensor.numel, parameters)) >= LARGE


KERNELS: Final = (
    ADAMW.kernel(
        adamw,
        "all tensors in one launch; torch's operator for small ones",
        source="torch._fused_adamw_ and accel_bridge",
    ),
)
