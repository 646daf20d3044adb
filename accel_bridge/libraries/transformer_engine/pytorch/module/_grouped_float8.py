"""Products of groups of rows in FP8: all rows quantized at once, one launch for all products.

What it computes is what ``_quantized_grouped`` computes group by group, bit by bit but for the
order of sums.

Legend: t rows sorted by group, e groups, k input size, m output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from accel_bridge.kernels import (
    GROUPED_SCALED_MATMUL,
    GROUPED_SCALED_WEIGHT_GRADIENT,
    SCALED_MATMUL,
)
from accel_bridge.kernels.active import kernel
from accel_bridge.kernels.grouped_float8 import parts_of_transposed, transposed_blocks

from ..distributed import in_fp8_activation_recompute_phase, is_fp8_activation_recompute_enabled
from ..quantization import FP8GlobalStateManager
from ._grouped_function import Groups, WeightGradients, neighbours
from ._grouped_operands import Operand, quantize_rows, quantize_weights, state_of
from ._main_grad import main_grad_of
from ._quantized_linear import Call, splits_sums

#: Key under which a module keeps its weights' FP8 copies between microbatches.
_CACHE = "weights of all groups"


class _Float8WeightGradients(WeightGradients):
    """The weight gradients of one call from FP8 transposes."""

    __slots__ = ("dtype", "precise", "sizes")

    def __init__(self, parameters: Sequence[Any], groups: Groups, call: Call) -> None:
        super().__init__(parameters, groups, biased=False)
        m, k = parameters[0].shape
        self.sizes = (k, m)
        self.dtype = call.dtype
        self.precise = splits_sums(call.recipe, "wgrad")

    def __call__(
        self, x: torch.Tensor, gradient: torch.Tensor, *scale_inv: torch.Tensor
    ) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
        """(gradients [m, k], None where they are in ``main_grad``; a None for each bias).

        :param x: the transposes of the inputs.
        :param gradient: the transposes of the gradients.
        :param scale_inv: of both.
        """
        replaces = self.groups.first.take()
        nothing: list[torch.Tensor | None] = [None] * len(self.parameters)
        if self._added_at_once(x, gradient, scale_inv, replaces):
            return nothing, nothing
        x_scale_inv, gradient_scale_inv = scale_inv
        splits, (k, m) = self.groups.splits, self.sizes
        by_block = x_scale_inv.dim() > 1
        product, made, first = kernel(SCALED_MATMUL), [], 0
        parts = zip(
            self.parameters,
            parts_of_transposed(x, splits, k),
            parts_of_transposed(gradient, splits, m),
            transposed_blocks(splits),
            strict=True,
        )
        for index, (parameter, inputs, outputs, count) in enumerate(parts):
            place = slice(first, first + count) if by_block else slice(index, index + 1)
            first += count
            main_grad = main_grad_of(parameter) if self.groups.fused else None
            if main_grad is not None and self._overwrites(parameter, replaces):
                main_grad.zero_()
            dtype = self.dtype if main_grad is None else main_grad.dtype
            if inputs.numel():
                one = product(
                    outputs,
                    inputs,
                    gradient_scale_inv[place].t() if by_block else gradient_scale_inv[place],
                    x_scale_inv[place].t() if by_block else x_scale_inv[place],
                    dtype=dtype,
                    precise=self.precise,
                )
            else:
                one = torch.zeros(m, k, dtype=dtype, device=x.device)
            if main_grad is not None:
                main_grad.add_(one)
            made.append(one if main_grad is None else None)
        return made, nothing

    @staticmethod
    def _overwrites(parameter: Any, replaces: bool) -> bool:
        return replaces or bool(getattr(parameter, "overwrite_main_grad", False))

    def _added_at_once(
        self,
        x: torch.Tensor,
        gradient: torch.Tensor,
        scale_inv: tuple[torch.Tensor, ...],
        replaces: bool,
    ) -> bool:
        """Add all products to the sums in one launch, if that is possible."""
        found, splits = kernel(GROUPED_SCALED_WEIGHT_GRADIENT), self.groups.splits
        if not self.groups.fused:
            return False
        sums = [main_grad_of(parameter) for parameter in self.parameters]
        whole = neighbours(sums)
        if whole is None:
            return False
        into, places = whole
        given: tuple[Any, ...] = (x, gradient, *scale_inv, splits, into, places)
        if found.supports(*given, sizes=self.sizes) is not None:
            return False
        old = [
            one
            for parameter, one in zip(self.parameters, sums, strict=True)
            if one is not None and self._overwrites(parameter, replaces)
        ]
        if old:
            torch._foreach_zero_(old)
        found.function(*given, sizes=self.sizes)
        return True


def _weights(call: Call, weights: Sequence[torch.Tensor], needs_x: bool) -> Operand:
    """The weights in FP8, from the module's copy where that is up to date."""
    cache, kept = call.module._fp8_workspaces, None
    if call.cache is not None:
        kept = cache.get(_CACHE)
    # A first pass whose activations are recomputed makes the copy that the second one uses.
    recomputes = is_fp8_activation_recompute_enabled() and not in_fp8_activation_recompute_phase()
    turns = needs_x or recomputes
    if kept is not None and not call.updates and not (turns and kept.transposed is None):
        return kept  # type: ignore[no-any-return]
    state = state_of(call.module, "scaling_fwd", 1, 3)
    made = quantize_weights(call.quantizers.weight, weights, state, turns)
    if call.cache is not None:
        cache[_CACHE] = made
    return made


def _inputs(call: Call, x: torch.Tensor, splits: Sequence[int], turns: bool) -> Operand:
    state = state_of(call.module, "scaling_fwd", 0, 3)
    return quantize_rows(call.quantizers.input, x, splits, state, turns)


class _GroupedFloat8(torch.autograd.Function):
    """x [t, k], e weights of [m, k], e biases of [m] or none -> [t, m]."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, groups: Groups, call: Call, *parameters: Any
    ) -> torch.Tensor:
        splits = groups.splits
        weights, biases = parameters[: len(splits)], parameters[len(splits) :]
        trains = call.differentiates and weights[0].requires_grad
        rows = _inputs(call, x, splits, trains and not call.keeps_input)
        factor = _weights(call, weights, call.differentiates and x.requires_grad)
        out = kernel(GROUPED_SCALED_MATMUL)(
            rows.numbers,
            factor.numbers,
            rows.scale_inv,
            factor.scale_inv,
            splits,
            dtype=call.dtype,
            precise=splits_sums(call.recipe, "fprop"),
        )
        for part, bias in zip(out.split(splits) if biases else (), biases, strict=True):
            part += bias.to(call.dtype)
        if not call.differentiates:
            return out
        ctx.groups, ctx.call = groups, call
        ctx.biased, ctx.trains = bool(biases), trains
        keeps = trains and call.keeps_input
        needs_x = x.requires_grad
        ctx.save_for_backward(
            x if keeps else None,
            None if keeps else rows.transposed,
            None if keeps else rows.turned_factors,
            factor.transposed if needs_x else None,
            factor.turned_factors if needs_x else None,
        )
        if groups.replaces and groups.fused and trains:
            groups.first.pending = True
        ctx.gradients = _Float8WeightGradients(weights, groups, call)
        ctx.updates_scales = (
            x.requires_grad or weights[0].requires_grad
        ) and FP8GlobalStateManager.is_first_fp8_module()
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        original, x, x_scale_inv, weight, weight_scale_inv = ctx.saved_tensors
        groups: Groups = ctx.groups
        call: Call = ctx.call
        splits, needs_x = groups.splits, ctx.needs_input_grad[0]
        if original is not None:
            again = _inputs(call, original, splits, True)
            x, x_scale_inv = again.transposed, again.turned_factors
        state = state_of(call.module, "scaling_bwd", 0, 2)
        rows = quantize_rows(call.quantizers.gradient, gradients[0], splits, state, ctx.trains)
        grad_x = None
        if needs_x:
            grad_x = kernel(GROUPED_SCALED_MATMUL)(
                rows.numbers,
                weight,
                rows.scale_inv,
                weight_scale_inv,
                splits,
                dtype=call.dtype,
                precise=splits_sums(call.recipe, "dgrad"),
            )
        grad_weights: list[torch.Tensor | None] = [None] * len(splits)
        if ctx.trains:
            product: _Float8WeightGradients = ctx.gradients
            operands = [x, rows.transposed, x_scale_inv, rows.turned_factors]
            if groups.store is not None:
                groups.store.put(operands, product)
            else:
                grad_weights, _ = product(*operands)
            grad_weights = product.for_autograd(grad_weights)
        if ctx.updates_scales:
            FP8GlobalStateManager.reduce_and_update_fp8_tensors(forward=False)
        biases = [part.sum(0) for part in gradients[0].split(splits)] if ctx.biased else []
        return grad_x, None, None, *grad_weights, *biases


def grouped_float8_linear(
    x: torch.Tensor,
    groups: Groups,
    call: Call,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
) -> torch.Tensor:
    """``x[rows of group i] @ weights[i]^T + biases[i]`` in FP8: [t, m].

    :param x: [t, k].
    :param call: of any group; its ``cache`` only says whether the weights' copies are kept.
    """
    output: torch.Tensor = _GroupedFloat8.apply(  # type: ignore[no-untyped-call]
        x, groups, call, *weights, *biases
    )
    return output
