"""A linear layer that adds its weight gradient directly to ``main_grad``.

Legend: s sequence, b batch, k input size, m output size of this tensor-parallel rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.parallel_state import get_global_memory_buffer
from megatron.core.utils import get_tensor_model_parallel_group_if_none
from torch.nn import functional

from accel_bridge.patches.modules.main_grad import embedding_answers, placeholder

Group = torch.distributed.ProcessGroup
#: A kernel that adds a gradient to the float32 sums in place.
Accumulate = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def _gather(local: torch.Tensor, group: Group, wait: bool) -> tuple[torch.Tensor, Any]:
    """Every rank's part of the sequence, in Megatron's shared buffer: [s, b, k]; and the handle."""
    size = [local.shape[0] * group.size(), *local.shape[1:]]
    whole = get_global_memory_buffer().get_tensor(size, local.dtype, "mpu")
    handle = torch.distributed.all_gather_into_tensor(
        whole, local.contiguous(), group=group, async_op=not wait
    )
    return whole, handle


class _Linear(torch.autograd.Function):
    """x [s, b, k] (s/p under sequence parallelism), weight [m, k], bias [m] -> [s, b, m]."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        kernel: Accumulate,
        allreduce: bool,
        sequence_parallel: bool,
        group: Group | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.kernel, ctx.group = kernel, group
        ctx.allreduce, ctx.sequence_parallel = allreduce, sequence_parallel
        ctx.biased = bias is not None
        # Not through save_for_backward: it is changed in place between forward and backward.
        ctx.main_grad = getattr(weight, "main_grad", None)
        ctx.embedding_answers = embedding_answers(weight)
        if sequence_parallel:
            assert group is not None
            x, _ = _gather(x, group, wait=True)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        group: Group = ctx.group
        gradient = gradients[0].contiguous()
        whole, gathering = x, None
        if ctx.sequence_parallel:
            whole, gathering = _gather(x, group, wait=False)
        grad_x = gradient.matmul(weight)
        if gathering is not None:
            gathering.wait()
        # One hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1): communication that is issued here
        # starts before the product of the weight gradient, and runs concurrently with it.
        reducing = None
        if ctx.allreduce:
            reducing = torch.distributed.all_reduce(grad_x, group=group, async_op=True)
        elif ctx.sequence_parallel:
            scattered = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            reducing = torch.distributed.reduce_scatter_tensor(
                scattered, grad_x, group=group, async_op=True
            )
        rows = gradient.view(-1, gradient.shape[-1])
        grad_weight: torch.Tensor | None
        if ctx.main_grad is None:
            grad_weight = rows.t().matmul(whole.reshape(-1, whole.shape[-1]))
        else:
            weight.main_grad = ctx.main_grad
            accumulate: Accumulate = ctx.kernel
            accumulate(whole, gradient, ctx.main_grad)
            grad_weight = None if ctx.embedding_answers else placeholder(weight, x.dtype)
        grad_bias = rows.sum(0) if ctx.biased else None
        if reducing is not None:
            reducing.wait()
        if ctx.sequence_parallel:
            grad_x = scattered
        return grad_x, grad_weight, grad_bias, None, None, None, None


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    kernel: Accumulate,
    allreduce: bool,
    sequence_parallel: bool,
    group: Group | None,
) -> torch.Tensor:
    """Stands in for ``linear_with_grad_accumulation_and_async_allreduce``.

    :param kernel: the backend's ``weight_gradient``.
    :param allreduce: sum the input's gradient over ``group``.
    :param sequence_parallel: x is this rank's part of the sequence.
    """
    if allreduce or sequence_parallel:
        group = get_tensor_model_parallel_group_if_none(group)
    output: torch.Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
        x, weight, bias, kernel, allreduce, sequence_parallel, group
    )
    return output
