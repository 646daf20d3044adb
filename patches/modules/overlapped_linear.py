"""A linear layer of tensor parallelism on GEMMs that are fused with their communication.

Legend: s sequence (and batch) of this rank, p ranks, k input size, m output size of this rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from accel_bridge.kernels.comm_gemm_overlap import CommGemmOverlap
from accel_bridge.libraries.main_grad import placeholder


class Sharding(NamedTuple):
    """How the weight of one call is sharded.

    :param row: the weight's input is split, else its output.
    :param sequence: a column's input and a row's output are parts of the sequence.
    :param add: adds a weight gradient to ``main_grad``, or None.
    """

    overlap: CommGemmOverlap
    group: Any
    row: bool
    sequence: bool
    add: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None] | None


class _Linear(torch.autograd.Function):
    """x [.., k], weight [m, k], bias [m] or None -> [.., m]."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: Any, bias: torch.Tensor | None, sharding: Sharding
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sharding, ctx.biased = sharding, bias is not None
        # Not among the saved tensors: it changes in place before this layer's next use.
        ctx.main_grad = weight.main_grad if sharding.add is not None else None
        return sharding.overlap.linear(
            x, weight, bias, sharding.group, row=sharding.row, sequence=sharding.sequence
        )

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        sharding: Sharding = ctx.sharding
        inputs, shape = x.reshape(-1, x.shape[-1]), x.shape
        rows = gradients[0].reshape(-1, weight.shape[0]).contiguous()
        reducing = None
        if not sharding.row:
            # Not fused: both transfers run beside a GEMM, the second beside the weight gradient.
            whole = inputs.new_empty((rows.shape[0], inputs.shape[1]))
            gathering: Any = dist.all_gather_into_tensor(
                whole, inputs.contiguous(), group=sharding.group, async_op=True
            )
            gemms, grad_x = rows @ weight, inputs.new_empty(inputs.shape)
            gathering.wait()
            reducing = dist.reduce_scatter_tensor(
                grad_x, gemms, group=sharding.group, async_op=True
            )
            inputs = whole
        elif sharding.sequence:
            grad_x, rows = sharding.overlap.gathered(rows, weight, sharding.group)
        else:
            grad_x = rows @ weight
        grad_weight = _weight_gradient(inputs, rows, weight, ctx.main_grad, sharding)
        grad_bias = rows.sum(0) if ctx.biased else None
        if reducing is not None:
            reducing.wait()
        return grad_x.view(shape), grad_weight, grad_bias, None


def _weight_gradient(
    inputs: torch.Tensor, rows: torch.Tensor, weight: Any, main_grad: Any, sharding: Sharding
) -> torch.Tensor | None:
    if sharding.add is None:
        return rows.t() @ inputs
    sharding.add(inputs, rows, main_grad)
    return placeholder(weight, main_grad)


def overlapped_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, sharding: Sharding
) -> torch.Tensor:
    """``x @ weight^T + bias``, its input gathered or its output summed as ``sharding`` says.

    :param x: [.., k].
    :param weight: [m, k].
    :param bias: [m] or None, of a column.
    """
    out: torch.Tensor = _Linear.apply(x, weight, bias, sharding)
    return out
