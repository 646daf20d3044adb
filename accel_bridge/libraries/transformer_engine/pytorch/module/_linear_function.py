"""One product with a weight that may be spread over ranks, in the tensors' own precision.

Communication of the backward pass overlaps with the product of the weight gradient. Only this
rank's part of the sequence is kept for it, and gathered again.

Legend: s sequence (and batch) of all ranks, p ranks, k input size, m output size of this rank.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn import functional

from accel_bridge.kernels.active import comm_gemm_overlap
from accel_bridge.libraries.main_grad import placeholder

from ..cpu_offload import is_cpu_offload_enabled, mark_activation_offload, mark_not_offload
from ..distributed import (
    allreduce,
    gather_along_first_dim,
    reduce_scatter_along_first_dim,
    symmetric_all_reduce,
)
from ._common import WeightGradStore
from ._main_grad import accumulate, main_grad_of


class Spread(NamedTuple):
    """How a layer is spread over ranks, and where its weight gradient goes.

    :param mode: ``column``, ``row``, or None without tensor parallelism.
    :param sequence_parallel: a column-parallel input and a row-parallel output are parts of the
        sequence.
    :param symmetric: type of the all-reduce through symmetric memory, or None.
    :param fused: add the weight gradient to the weight's ``main_grad``.
    :param first: this is the first microbatch, whose gradient replaces what ``main_grad`` holds.
    :param store: where the weight gradient's product waits, or None.
    :param computes: false in a recomputation that needs what is kept for the backward pass, but
        not the result.
    """

    mode: str | None
    sequence_parallel: bool
    group: Any
    symmetric: str | None
    fused: bool
    first: bool
    store: WeightGradStore | None
    computes: bool = True


class First:
    """Tells the first weight gradient since the first microbatch's forward pass from the rest.

    A module that is used twice in that microbatch has two: only one may replace ``main_grad``.
    """

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending = False

    def take(self) -> bool:
        pending, self.pending = self.pending, False
        return pending


class WeightGradient:
    """The weight gradient of one call, computed now or later.

    :param parameter: the weight, with the attributes that frameworks set on it.
    :param fused: see :class:`Spread`.
    :param first: of the module.
    """

    __slots__ = ("biased", "first", "fused", "parameter")

    def __init__(self, parameter: Any, fused: bool, first: First, biased: bool) -> None:
        self.parameter = parameter
        self.fused = fused
        self.first = first
        self.biased = biased

    def main_grad(self) -> torch.Tensor | None:
        """Where the gradient is added; None for an ordinary gradient."""
        return main_grad_of(self.parameter) if self.fused else None

    def overwrites(self) -> bool:
        """Whether it replaces what ``main_grad`` holds; asked once."""
        first = self.first.take()
        return first or bool(getattr(self.parameter, "overwrite_main_grad", False))

    def __call__(
        self, x: torch.Tensor, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """(weight gradient [m, k], or None if it is in ``main_grad``; bias gradient [m] or None).

        :param x: [s, k].
        :param gradient: [s, m].
        """
        bias = gradient.sum(0) if self.biased else None
        main_grad = self.main_grad()
        if main_grad is None:
            return gradient.t().matmul(x).to(self.parameter.dtype), bias
        accumulate(x, gradient, main_grad, self.overwrites())
        return None, bias

    def for_autograd(self, made: torch.Tensor | None) -> torch.Tensor | None:
        """The gradient itself, or what stands for one in ``main_grad``."""
        main_grad = self.main_grad()
        return made if main_grad is None else placeholder(self.parameter, main_grad)


class _Linear(torch.autograd.Function):
    """weight [m, k], x [.., k], bias [m] or None -> [.., m]."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: torch.Tensor,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        spread: Spread,
        first: First,
    ) -> torch.Tensor:
        mode, sequence_parallel = spread.mode, spread.sequence_parallel
        ctx.spread, ctx.shape, ctx.x_dtype = spread, x.shape, x.dtype
        if x.dtype != dtype:
            x = x.to(dtype)
        factor = weight if weight.dtype == dtype else weight.to(dtype)
        if bias is not None and bias.dtype != dtype:
            bias = bias.to(dtype)
        if is_cpu_offload_enabled():
            mark_activation_offload(x)
            mark_not_offload(weight, factor)
        ctx.save_for_backward(x if weight.requires_grad else None, factor)
        if spread.fused and spread.first and weight.requires_grad:
            first.pending = True
        ctx.gradient = WeightGradient(
            weight,
            spread.fused,
            first,
            bias is not None and bias.requires_grad,
        )
        if not spread.computes:
            return x.new_empty((*x.shape[:-1], factor.shape[0]))
        products = comm_gemm_overlap() if mode is not None and spread.symmetric is None else None
        if products is not None and (mode == "row" or sequence_parallel):
            return products.linear(
                x, factor, bias, spread.group, row=mode == "row", sequence=sequence_parallel
            )
        if mode == "column" and sequence_parallel:
            x, _ = gather_along_first_dim(x, spread.group)
        out = functional.linear(x, factor, bias)
        if mode != "row":
            return out
        if sequence_parallel:
            out, _ = reduce_scatter_along_first_dim(out, spread.group)
        elif spread.symmetric is not None:
            out, _ = symmetric_all_reduce(out, spread.group, all_reduce_type=spread.symmetric)
        else:
            out, _ = allreduce(out, spread.group)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, factor = ctx.saved_tensors
        spread: Spread = ctx.spread
        group = spread.group
        needs_weight, needs_x, needs_bias = ctx.needs_input_grad[:3]
        gathers = spread.mode == "column" and spread.sequence_parallel
        gradient = gradients[0]
        grad_x, reducing = None, None
        if spread.mode == "row" and spread.sequence_parallel:
            products = comm_gemm_overlap()
            if products is not None and needs_x:
                part = gradient.reshape(-1, gradient.shape[-1]).to(factor.dtype)
                grad_x, gradient = products.gathered(part, factor, group)
            else:
                gradient, _ = gather_along_first_dim(gradient, group)
        # Products of broadcast gradients would copy them in an order of their own, and sum in
        # another order than GroupedLinear does.
        rows = gradient.reshape(-1, gradient.shape[-1]).contiguous()
        if rows.dtype != factor.dtype:
            rows = rows.to(factor.dtype)
        gathering = None
        if needs_weight and gathers:
            x, gathering = gather_along_first_dim(x, group, async_op=True)
        if needs_x and grad_x is None:
            grad_x = rows.matmul(factor)
        if gathering is not None:
            gathering.wait()
        # One hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1): communication that is issued here
        # starts before the product of the weight gradient, and runs concurrently with it.
        if grad_x is not None and spread.mode == "column":
            if gathers:
                grad_x, reducing = reduce_scatter_along_first_dim(grad_x, group, async_op=True)
            else:
                grad_x, reducing = allreduce(grad_x, group, async_op=True)
        grad_weight = grad_bias = None
        if needs_weight:
            product: WeightGradient = ctx.gradient
            inputs = x.reshape(-1, x.shape[-1])
            if spread.store is not None:
                spread.store.put([inputs, rows], product)
            else:
                grad_weight, grad_bias = product(inputs, rows)
            grad_weight = product.for_autograd(grad_weight)
        elif needs_bias:
            grad_bias = rows.sum(0)
        if reducing is not None:
            reducing.wait()
        if grad_x is not None:
            grad_x = grad_x.view(ctx.shape)
            if grad_x.dtype != ctx.x_dtype:
                grad_x = grad_x.to(ctx.x_dtype)
        return grad_weight, grad_x, grad_bias, None, None, None


def linear(
    weight: torch.Tensor,
    x: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    spread: Spread,
    first: First,
) -> torch.Tensor:
    """``x @ weight^T + bias`` in ``dtype``, summed or gathered over the ranks as ``spread`` says.

    :param weight: [m, k].
    :param x: [.., k]; this rank's part of the sequence if column-parallel under sequence
        parallelism.
    :param bias: [m] or None.
    :param first: of the module.
    :returns: [.., m]; this rank's part of the sequence if row-parallel under sequence parallelism.
    """
    output: torch.Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
        weight, x, bias, dtype, spread, first
    )
    return output
