"""Products of groups of rows, each with a weight of its own.

Legend: t rows sorted by group, e groups, k input size, m output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.nn import functional

from accel_bridge.kernels import GROUPED_MATMUL, GROUPED_WEIGHT_GRADIENT
from accel_bridge.kernels.active import kernel
from accel_bridge.libraries.main_grad import placeholder
from accel_bridge.libraries.transformer_engine_torch._tensors import stacked

from ..cpu_offload import is_cpu_offload_enabled, mark_activation_offload, mark_not_offload
from ._common import WeightGradStore
from ._linear_function import First
from ._main_grad import accumulate, main_grad_of

#: Floating-point operations of a group's product from which on separate products are as fast as a
#: grouped one. On an H200 a launch costs the host 38 us, and the device does 700 TFLOP/s.
MUCH: Final = 5e10


class Groups(NamedTuple):
    """How the rows are grouped, and where the weight gradients go.

    :param splits: rows of each group.
    :param fused: add the weight gradients to the weights' ``main_grad``.
    :param replaces: this is the first microbatch, whose gradients replace what ``main_grad`` holds.
    :param first: of the module.
    :param store: where the products of the weight gradients wait, or None.
    """

    splits: list[int]
    fused: bool
    replaces: bool
    first: First
    store: WeightGradStore | None


def neighbours(
    sums: Sequence[torch.Tensor | None],
) -> tuple[torch.Tensor, list[int]] | None:
    """The storage [n] in which all sums lie, and where each begins; None if it is not one."""
    first = sums[0]
    if first is None:
        return None
    storage = first.untyped_storage().data_ptr()
    places = []
    for one in sums:
        if one is None or one.dtype != first.dtype or not one.is_contiguous():
            return None
        if one.untyped_storage().data_ptr() != storage:
            return None
        places.append(int(one.storage_offset()))
    size = first.untyped_storage().nbytes() // first.element_size()
    return first.as_strided((size,), (1,), 0), places


def _in_one_launch(
    x: torch.Tensor, weights: Sequence[torch.Tensor], splits: list[int], transposed: bool
) -> torch.Tensor | None:
    """All products at once, or None where that is impossible or no faster."""
    found = kernel(GROUPED_MATMUL)
    if found.is_reference or 2 * x.shape[0] * weights[0].numel() > MUCH * len(splits):
        return None
    whole = stacked(weights)
    if whole is None:
        return None
    factor, counts = (
        whole.transpose(1, 2) if transposed else whole,
        torch.tensor(splits, device="cpu"),
    )
    return None if found.supports(x, factor, counts) else found.function(x, factor, counts)


def products(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    splits: list[int],
    transposed: bool,
    biases: Sequence[torch.Tensor] = (),
) -> torch.Tensor:
    """``x[rows of group i] @ weights[i]^T + biases[i]`` (or ``@ weights[i]``): [t, m] (or [t, k]).

    :param biases: of [m] each, or none.
    """
    together = _in_one_launch(x, weights, splits, transposed)
    if together is not None:
        if biases:
            for rows, bias in zip(together.split(splits), biases, strict=True):
                rows += bias
        return together
    if x.dtype == torch.float16:
        # Devices that are slow at float16 compute products in float32, except with `out=`.
        nothing: list[torch.Tensor | None] = [None] * len(splits)
        parts = zip(x.split(splits), weights, biases or nothing, strict=True)
        return torch.cat(
            [
                functional.linear(rows, weight, bias) if transposed else rows.matmul(weight)
                for rows, weight, bias in parts
            ]
        )
    output = x.new_empty(x.shape[0], weights[0].shape[0 if transposed else 1])
    groups = zip(x.split(splits), output.split(splits), weights, strict=True)
    for index, (rows, result, weight) in enumerate(groups):
        factor = weight.t() if transposed else weight
        if biases:
            torch.addmm(biases[index], rows, factor, out=result)
        else:
            torch.mm(rows, factor, out=result)
    return output


class WeightGradients:
    """The weight gradients of one call, computed now or later.

    :param parameters: the weights, with the attributes that frameworks set on them.
    """

    __slots__ = ("biased", "groups", "parameters")

    def __init__(self, parameters: Sequence[Any], groups: Groups, biased: bool) -> None:
        self.parameters = parameters
        self.groups = groups
        self.biased = biased

    def __call__(
        self, x: torch.Tensor, gradient: torch.Tensor
    ) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
        """(gradients [m, k], None where they are in ``main_grad``; bias gradients [m] or None)."""
        splits, fused = self.groups.splits, self.groups.fused
        replaces = self.groups.first.take()
        if fused and not self.biased and self._in_one_launch(x, gradient, replaces):
            return [None] * len(splits), [None] * len(splits)
        made: list[torch.Tensor | None] = []
        biases: list[torch.Tensor | None] = []
        rows = zip(self.parameters, x.split(splits), gradient.split(splits), strict=True)
        for parameter, inputs, outputs in rows:
            biases.append(outputs.sum(0) if self.biased else None)
            main_grad = main_grad_of(parameter) if fused else None
            if main_grad is None:
                made.append(outputs.t().matmul(inputs).to(parameter.dtype))
                continue
            overwrites = replaces or bool(getattr(parameter, "overwrite_main_grad", False))
            accumulate(inputs, outputs, main_grad, overwrites)
            made.append(None)
        return made, biases

    def _in_one_launch(self, x: torch.Tensor, gradient: torch.Tensor, replaces: bool) -> bool:
        """Add all products at once, if that is possible and faster."""
        found, splits = kernel(GROUPED_WEIGHT_GRADIENT), self.groups.splits
        work = 2 * x.shape[0] * self.parameters[0].numel()
        if found.is_reference or work > MUCH * len(splits):
            return False
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            return False  # the numbers of rows would be those of the capture
        sums = [main_grad_of(parameter) for parameter in self.parameters]
        whole = neighbours(sums)
        if whole is None:
            return False
        if found.supports(x, gradient, splits, *whole) is not None:
            return False
        for parameter, one in zip(self.parameters, sums, strict=True):
            if one is not None and (replaces or getattr(parameter, "overwrite_main_grad", False)):
                one.zero_()
        found.function(x, gradient, splits, *whole)
        return True

    def for_autograd(self, made: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The gradients themselves, or what stands for those in ``main_grad``."""
        result: list[torch.Tensor | None] = []
        for parameter, gradient in zip(self.parameters, made, strict=True):
            main_grad = main_grad_of(parameter) if self.groups.fused else None
            result.append(gradient if main_grad is None else placeholder(parameter, main_grad))
        return result


class _GroupedLinear(torch.autograd.Function):
    """x [t, k], e weights of [m, k], e biases of [m] or none -> [t, m]."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, dtype: torch.dtype, groups: Groups, *parameters: torch.Tensor
    ) -> torch.Tensor:
        splits = groups.splits
        weights, biases = parameters[: len(splits)], parameters[len(splits) :]
        ctx.x_dtype, ctx.groups = x.dtype, groups
        if x.dtype != dtype:
            x = x.to(dtype)
        trains = weights[0].requires_grad
        factors = [
            weight.detach() if weight.dtype == dtype else weight.to(dtype) for weight in weights
        ]
        if is_cpu_offload_enabled():
            mark_activation_offload(x)
            mark_not_offload(*weights, *factors)
        ctx.save_for_backward(x if trains else None, *factors)
        if groups.replaces and groups.fused and trains:
            groups.first.pending = True
        ctx.gradients = WeightGradients(weights, groups, bool(biases) and biases[0].requires_grad)
        return products(
            x, factors, splits, transposed=True, biases=[bias.to(dtype) for bias in biases]
        )

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, *factors = ctx.saved_tensors
        groups: Groups = ctx.groups
        count = len(groups.splits)
        needs_x, needs_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[3]
        gradient = gradients[0].contiguous()
        if gradient.dtype != factors[0].dtype:
            gradient = gradient.to(factors[0].dtype)
        grad_x = None
        if needs_x:
            grad_x = products(gradient, factors, groups.splits, transposed=False)
            if grad_x.dtype != ctx.x_dtype:
                grad_x = grad_x.to(ctx.x_dtype)
        product: WeightGradients = ctx.gradients
        nothing: list[torch.Tensor | None] = [None] * count
        grad_weights, grad_biases = nothing, nothing
        if needs_weight:
            if groups.store is not None:
                groups.store.put([x, gradient], product)
            else:
                grad_weights, grad_biases = product(x, gradient)
            grad_weights = product.for_autograd(grad_weights)
        elif product.biased:
            grad_biases = [rows.sum(0) for rows in gradient.split(groups.splits)]
        biases = grad_biases if len(ctx.needs_input_grad) > 3 + count else []
        return grad_x, None, None, *grad_weights, *biases


def grouped_linear(
    x: torch.Tensor,
    dtype: torch.dtype,
    groups: Groups,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
) -> torch.Tensor:
    """``x[rows of group i] @ weights[i]^T + biases[i]`` in ``dtype``: [t, m].

    :param x: [t, k].
    :param weights: e of [m, k].
    :param biases: e of [m], or none.
    """
    output: torch.Tensor = _GroupedLinear.apply(  # type: ignore[no-untyped-call]
        x, dtype, groups, *weights, *biases
    )
    return output
