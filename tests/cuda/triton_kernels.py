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
) -> None:
    """Triton's AdamW of copies in one tensor: the interpreter knows no address of another."""
    lists = (parameters, gradients, first_moments, second_moments)
    tensors = [one for several in lists for one in several]
    room = [-(-one.numel() // 4) * 4 for one in tensors]
    parts = torch.zeros(sum(room)).split(room)
    copies = [
        part[: one.numel()].view_as(one).copy_(one)
        for part, one in zip(parts, tensors, strict=True)
    ]
    count = len(parameters)
    adamw.adamw([copies[at : at + count] for at in range(0, 4 * count, count)], options, scale)
    for one, copy in zip(tensors, copies, strict=True):
        one.copy_(copy)


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
