"""Products of groups of rows in FP8, each with a weight and quantizers of its own.

Source of the semantics: transformer_engine/pytorch/module/grouped_linear.py of Transformer Engine
2.13.

Legend: t rows sorted by group, e groups, k input size, m output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..cpp_extensions import general_gemm
from ..cpu_offload import is_cpu_offload_enabled, mark_activation_offload, mark_not_offload
from ..quantization import FP8GlobalStateManager
from ..quantized_tensor import QuantizedTensor, prepare_for_saving, restore_from_saved
from ..tensor.float8_tensor import Float8Quantizer
from ._grouped_float8 import grouped_float8_linear
from ._grouped_function import Groups, grouped_linear
from ._grouped_operands import why_apart
from ._linear_function import Spread
from ._quantized_linear import (
    Call,
    QuantizedWeightGradient,
    Quantizers,
    quantize_gradient,
    quantize_weight,
    quantizers_of,
    splits_sums,
)


class QuantizedWeightGradients:
    """The weight gradients of one call from FP8 tensors; groups without rows have zeros.

    :param products: those of each group.
    """

    __slots__ = ("products",)

    def __init__(self, products: Sequence[QuantizedWeightGradient]) -> None:
        self.products = products

    def __call__(
        self, inputs: Sequence[Any], gradients: Sequence[Any]
    ) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
        """(gradients [m, k], None where they are in ``main_grad``; a None for each bias)."""
        first = self.products[0].first
        replaces = first.take()
        made: list[torch.Tensor | None] = []
        for product, x, gradient in zip(self.products, inputs, gradients, strict=True):
            first.pending = replaces
            if x is not None:
                made.append(product(x, gradient)[0])
                continue
            main_grad = product.main_grad()
            made.append(torch.zeros_like(product.parameter) if main_grad is None else None)
            if main_grad is not None and product.overwrites():
                main_grad.zero_()
        first.pending = False
        return made, [None] * len(made)

    def for_autograd(self, made: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The gradients themselves, or what stands for those in ``main_grad``."""
        pairs = zip(self.products, made, strict=True)
        return [product.for_autograd(gradient) for product, gradient in pairs]


class _QuantizedGroupedLinear(torch.autograd.Function):
    """x [t, k], e weights of [m, k], e biases of [m] or none -> [t, m]."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, groups: Groups, calls: Sequence[Call], *parameters: Any
    ) -> torch.Tensor:
        splits = groups.splits
        weights, biases = parameters[: len(splits)], parameters[len(splits) :]
        one = calls[0]
        trains = one.differentiates and weights[0].requires_grad
        out = torch.empty((x.shape[0], weights[0].shape[0]), dtype=one.dtype, device=x.device)
        kept: list[Any] = []
        factors: list[Any] = []
        rows = zip(calls, weights, x.split(splits), out.split(splits), strict=True)
        for index, (call, weight, inputs, result) in enumerate(rows):
            needs_transpose = call.differentiates and x.requires_grad
            factors.append(quantize_weight(call, weight, needs_transpose))
            kept.append(None)
            if not len(inputs):
                continue
            quantizer = call.quantizers.input
            quantizer.set_usage(rowwise=True, columnwise=trains and not call.keeps_input)
            quantized = quantizer(inputs)
            general_gemm(
                factors[-1],
                quantized,
                out=result,
                bias=biases[index].to(call.dtype) if biases else None,
                use_split_accumulator=splits_sums(call.recipe, "fprop"),
            )
            if trains and not call.keeps_input:
                quantized.update_usage(rowwise_usage=False, columnwise_usage=True)
                kept[-1] = quantized
        if not one.differentiates:
            return out
        ctx.groups, ctx.calls, ctx.x_dtype = groups, calls, x.dtype
        ctx.biased, ctx.trains = bool(biases), trains
        original = x if trains and one.keeps_input else None
        if is_cpu_offload_enabled():
            mark_activation_offload(original, *kept)
            mark_not_offload(*weights, *factors)
        parts, ctx.owners = prepare_for_saving(original, *kept, *factors)
        ctx.save_for_backward(*parts)
        if groups.replaces and groups.fused and trains:
            groups.first.pending = True
        ctx.gradients = QuantizedWeightGradients(
            [
                QuantizedWeightGradient(weight, groups.fused, groups.first, call.dtype, call.recipe)
                for weight, call in zip(weights, calls, strict=True)
            ]
        )
        ctx.updates_scales = (
            x.requires_grad or weights[0].requires_grad
        ) and FP8GlobalStateManager.is_first_fp8_module()
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        original, *rest = restore_from_saved(ctx.owners, ctx.saved_tensors)
        ctx.owners = None
        groups: Groups = ctx.groups
        splits, calls = groups.splits, ctx.calls
        inputs, factors = rest[: len(splits)], rest[len(splits) :]
        if original is not None:
            inputs = _quantized_again(original, splits, calls)
        needs_x = ctx.needs_input_grad[0]
        gradient = gradients[0].contiguous()
        parts = gradient.split(splits)
        grad_x = None
        if needs_x:
            size = (gradient.shape[0], factors[0].size()[-1])
            grad_x = torch.empty(size, dtype=calls[0].dtype, device=gradient.device)
        quantized: list[Any] = []
        results = [None] * len(splits) if grad_x is None else grad_x.split(splits)
        for call, factor, part, result in zip(calls, factors, parts, results, strict=True):
            quantized.append(None)
            if not len(part):
                continue
            made = quantize_gradient(call.quantizers.gradient, part, needs_x, ctx.trains)
            quantized[-1] = made
            if result is not None:
                factor.update_usage(columnwise_usage=True)
                general_gemm(
                    factor,
                    made,
                    layout="NN",
                    out=result,
                    use_split_accumulator=splits_sums(call.recipe, "dgrad"),
                    grad=True,
                )
        grad_weights: Sequence[torch.Tensor | None] = [None] * len(splits)
        if ctx.trains:
            products: QuantizedWeightGradients = ctx.gradients
            if groups.store is not None:
                groups.store.put([inputs, quantized], products)
            else:
                grad_weights, _ = products(inputs, quantized)
            grad_weights = products.for_autograd(grad_weights)
        if ctx.updates_scales:
            FP8GlobalStateManager.reduce_and_update_fp8_tensors(forward=False)
        biases = [part.sum(0) for part in parts] if ctx.biased else []
        return grad_x, None, None, *grad_weights, *biases


def _quantized_again(x: torch.Tensor, splits: Sequence[int], calls: Sequence[Call]) -> list[Any]:
    made: list[Any] = []
    for call, rows in zip(calls, x.split(list(splits)), strict=True):
        call.quantizers.input.set_usage(rowwise=True, columnwise=True)
        made.append(call.quantizers.input(rows) if len(rows) else None)
    return made


def _at_once(
    quantizers: Sequence[Quantizers], splits: Sequence[int], weights: Sequence[torch.Tensor]
) -> bool:
    """Whether one launch can do what all groups need."""
    if is_cpu_offload_enabled():
        return False
    needed = [one for mine in quantizers for one in (mine.input, mine.weight, mine.gradient)]
    return why_apart(needed, splits, weights) is None


def quantized_grouped_linear(
    module: Any,
    x: torch.Tensor,
    groups: Groups,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    is_first_microbatch: bool | None,
) -> torch.Tensor:
    """``x[rows of group i] @ weights[i]^T + biases[i]`` as the module's FP8 recipe says: [t, m].

    :param x: [t, k].
    :raises ValueError: delayed scaling is asked to keep the input.
    """
    count = len(weights)
    quantizers = [quantizers_of(module, index, False, False) for index in range(count)]
    if not module.fp8:
        for mine, weight, rows in zip(quantizers, weights, x.split(groups.splits), strict=True):
            if len(rows):
                mine.input.calibrate(rows)
            mine.weight.calibrate(weight)
        return grouped_linear(x, module.activation_dtype, groups, weights, biases)
    if module.save_original_input and isinstance(quantizers[0].input, Float8Quantizer):
        raise ValueError("DelayedScaling recipe is not supported with save_original_input")
    if not isinstance(weights[0], QuantizedTensor):
        for mine in quantizers:
            mine.weight.internal = True
    recipe = FP8GlobalStateManager.get_fp8_recipe()

    def call(index: int) -> Call:
        return Call(
            module=module,
            quantizers=quantizers[index],
            spread=Spread(None, False, None, None, groups.fused, False, None),
            dtype=module.activation_dtype,
            recipe=recipe,
            cache=None if is_first_microbatch is None else f"weight{index}",
            updates=is_first_microbatch is None or is_first_microbatch,
            skip_update=None,
            keeps_input=module.save_original_input,
            differentiates=torch.is_grad_enabled(),
            first=module._first,
        )

    if _at_once(quantizers, groups.splits, weights):
        return grouped_float8_linear(x, groups, call(0), weights, biases)
    calls = [call(index) for index in range(count)]
    output: torch.Tensor = _QuantizedGroupedLinear.apply(  # type: ignore[no-untyped-call]
        x, groups, calls, *weights, *biases
    )
    return output
