"""The Triton code of all CUDA kernels, also of those that choose torch's operators for some calls.

For the scripts beside it: one interprets the kernels, one compiles them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from accel_bridge.backends.cuda.kernels import (
    KERNELS,
    adamw,
    bias_dropout_add,
    bias_gelu,
    norms,
    scaled_matmul,
)
from accel_bridge.kernels import AdamWOptions
from accel_bridge.kernels._contract import Kernel

#: Kernels of this backend that are no Triton code.
NOT_TRITON = {"attention", "weight_gradient", "grouped_matmul"}


def adamw_in_one_buffer(
    parameters: list[torch.Tensor],
    gradients: list[torch.Tensor],
    first_moments: list[torch.Tensor],
    second_moments: list[torch.Tensor],
    options: AdamWOptions,
    scale: torch.Tensor | None = None,
    copies: list[torch.Tensor] | None = None,
) -> None:
    """Triton's AdamW of lists in one tensor: the interpreter knows no address of another."""
    tensors = [*parameters, *gradients, *first_moments, *second_moments]
    placed = _in_one_buffer(tensors)
    lists = [placed[at :: len(parameters)] for at in range(len(parameters))]
    written = None if copies is None else _in_one_buffer(copies)
    assert adamw.adamw(list(zip(*lists, strict=True)), options, scale, written)
    for one, other in zip((*tensors, *(copies or ())), (*placed, *(written or ())), strict=True):
        one.copy_(other)


def _in_one_buffer(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    room = [-(-one.numel() // 8) * 8 for one in tensors]
    parts = torch.zeros(sum(room), dtype=tensors[0].dtype).split(room)
    return [
        part[: one.numel()].view_as(one).copy_(one)
        for part, one in zip(parts, tensors, strict=True)
    ]


#: Contracts whose kernel chooses torch for some calls -> Triton's part of it.
ALWAYS_TRITON = {"scaled_matmul": scaled_matmul.by_triton, "adamw": adamw_in_one_buffer}


def triton_kernels() -> Iterator[Kernel[Any, Any]]:
    """Each kernel with Triton code, which from now on serves small inputs, too."""
    for module in (bias_dropout_add, bias_gelu, norms):
        vars(module)["LARGE"] = 0
    for kernel in KERNELS:
        name = kernel.contract.name
        if kernel.is_reference or name in NOT_TRITON:
            continue
        if name in ALWAYS_TRITON:
            kernel = kernel.contract.kernel(ALWAYS_TRITON[name], "for a test", kernel.supports)
        yield kernel
