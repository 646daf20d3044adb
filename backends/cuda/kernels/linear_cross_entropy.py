"""An output layer and its loss: cuBLAS's GEMMs, with one Triton kernel between them.

Legend: n tokens of a chunk, v columns of this rank's part of the vocabulary.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist

from accel_bridge.backends._linear_cross_entropy import LinearCrossEntropy, Steps
from accel_bridge.backends.cuda.kernels._choice import not_for_triton
from accel_bridge.backends.cuda.kernels._launch import blocks, power_of_two, warps
from accel_bridge.backends.cuda.kernels.cross_entropy import (
    BLOCK,
    gradient_kernel,
    statistics_kernel,
)
from accel_bridge.kernels import WEIGHT_GRADIENT


def _statistics(logits: torch.Tensor, index: torch.Tensor, first: int, out: torch.Tensor) -> None:
    rows, columns = logits.shape
    peak, total, predicted = out.unbind()
    block = min(BLOCK, power_of_two(columns))
    if rows:
        statistics_kernel[(rows,)](
            *(logits, index, peak, total, predicted, peak),
            *(logits.stride(0), columns, first),
            SMOOTHED=False,
            BLOCK=block,
            num_warps=warps(block),
        )


def _gradient(
    logits: torch.Tensor, index: torch.Tensor, first: int, peak: torch.Tensor, total: torch.Tensor
) -> None:
    rows, columns = logits.shape
    block = min(BLOCK, power_of_two(columns))
    if rows:
        gradient_kernel[(rows, blocks(columns, block))](
            *(logits, logits, index, peak, total, torch.ones_like(peak)),
            *(logits.stride(0), columns, first, 0.0, 0.0),
            BLOCK=block,
            num_warps=warps(block),
        )


def _accumulate(input: torch.Tensor, gradient: torch.Tensor, sums: torch.Tensor) -> None:
    from accel_bridge.backends.cuda.kernels import KERNELS

    KERNELS[WEIGHT_GRADIENT](input, gradient, sums)


_STEPS: Final = Steps(_statistics, _gradient, _accumulate)


def linear_cross_entropy(
    input: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    *,
    token_weight: torch.Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    scale: float = 1.0,
    main_grad: torch.Tensor | None = None,
) -> torch.Tensor:
    """The contract ``linear_cross_entropy``."""
    loss: torch.Tensor = LinearCrossEntropy.apply(
        input, weight, target, token_weight, group, scale, main_grad, _STEPS
    )
    return loss


def supports(input: torch.Tensor, weight: torch.Tensor, *_: object, **__: object) -> str | None:
    """Where :func:`linear_cross_entropy` applies."""
    from accel_bridge.backends._linear_cross_entropy import unsupported

    return unsupported(input, weight) or not_for_triton(input)
