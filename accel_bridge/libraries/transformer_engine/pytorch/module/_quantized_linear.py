"""One product with a weight in FP8, forward and backward.

Source of the semantics: transformer_engine/pytorch/module/linear.py of Transformer Engine 2.13.

Legend: s sequence (and batch) of all ranks, k input size, m output size of this rank.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

from .._quantized_gather import travels_as_bytes
from ..cpp_extensions import general_gemm
from ..cpu_offload import is_cpu_offload_enabled, mark_activation_offload, mark_not_offload
from ..distributed import (
    allreduce,
    gather_along_first_dim,
    in_fp8_activation_recompute_phase,
    is_fp8_activation_recompute_enabled,
    reduce_scatter_along_first_dim,
    symmetric_all_reduce,
)
from ..quantization import FP8GlobalStateManager
from ..quantized_tensor import (
    QuantizedTensor,
    QuantizedTensorStorage,
    prepare_for_saving,
    restore_from_saved,
)
from ..tensor.float8_tensor import Float8Quantizer
from ..utils import assert_dim_for_fp8_exec
from ._linear_function import First, Spread, WeightGradient, linear
from .base import _2X_ACC_DGRAD, _2X_ACC_FPROP, _2X_ACC_WGRAD

#: Products whose sums a recipe may ask to be split.
_DEFAULTS: Final = {"fprop": _2X_ACC_FPROP, "dgrad": _2X_ACC_DGRAD, "wgrad": _2X_ACC_WGRAD}


class Quantizers(NamedTuple):
    """Of one product; ``output`` and ``grad_input`` are None where high precision is wanted."""

    input: Any
    weight: Any
    output: Any
    gradient: Any
    grad_input: Any


class Call(NamedTuple):
    """What a call of the autograd function needs besides tensors.

    :param cache: key under which the module keeps the weight's FP8 copy, or None.
    :param updates: write the weight's values into a copy that is kept.
    :param keeps_input: keep the input itself for the backward pass.
    :param differentiates: whether there will be a backward pass.
    """

    module: Any
    quantizers: Quantizers
    spread: Spread
    dtype: torch.dtype
    recipe: Any
    cache: str | None
    updates: bool
    skip_update: torch.Tensor | None
    keeps_input: bool
    differentiates: bool
    first: First


def splits_sums(recipe: Any, product: str) -> bool:
    """Whether the recipe sums the products ``fprop``, ``dgrad`` or ``wgrad`` in float32 parts."""
    options = getattr(recipe, f"fp8_gemm_{product}", None)
    return _DEFAULTS[product] if options is None else bool(options.use_split_accumulator)


def set_current_scaling(module: Any, fwd: bool, product: int, group: Any) -> None:
    """Set a current-scaling recipe's options on the quantizers of one product.

    :param group: ranks among which the largest magnitude is taken, or None.
    """
    recipe: Any = FP8GlobalStateManager.get_fp8_recipe()
    if fwd:
        first = module.quantizers["scaling_fwd"][3 * product]
        pairs = [
            (first, recipe.fp8_quant_fwd_inp),
            (module.quantizers["scaling_fwd"][3 * product + 1], recipe.fp8_quant_fwd_weight),
        ]
    else:
        first = module.quantizers["scaling_bwd"][2 * product]
        pairs = [(first, recipe.fp8_quant_bwd_grad)]
    for quantizer, options in pairs:
        quantizer.force_pow_2_scales = options.power_2_scale
        quantizer.amax_epsilon = options.amax_epsilon
    if group is not None:
        first.with_amax_reduction = True
        first.amax_reduction_group = group


def quantize_weight(call: Call, weight: Any, needs_transpose: bool) -> Any:
    """The weight in FP8: itself, or the module's copy."""
    quantizer = call.quantizers.weight
    if isinstance(weight, QuantizedTensor):
        quantizer = weight._quantizer
    elif quantizer is not None:
        # A first pass whose activations are recomputed makes the copy that the second one uses.
        recomputes = is_fp8_activation_recompute_enabled() and not (
            in_fp8_activation_recompute_phase()
        )
        quantizer.set_usage(rowwise=True, columnwise=needs_transpose or recomputes)
    copy = call.module.get_weight_workspace(
        tensor=weight,
        quantizer=quantizer,
        cache_name=call.cache,
        update_workspace=call.updates,
        skip_update_flag=call.skip_update,
        workspace_dtype=call.dtype,
    )
    copy.update_usage(rowwise_usage=True)
    return copy


class QuantizedWeightGradient(WeightGradient):
    """The weight gradient of one call from FP8 tensors."""

    __slots__ = ("dtype", "splits")

    def __init__(
        self,
        parameter: Any,
        fused: bool,
        first: First,
        dtype: torch.dtype,
        recipe: Any,
    ) -> None:
        super().__init__(parameter, fused, first, biased=False)
        self.dtype = dtype
        self.splits = splits_sums(recipe, "wgrad")

    def __call__(self, x: Any, gradient: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """(weight gradient [m, k], or None if it is in ``main_grad``; None)."""
        main_grad = self.main_grad()
        made, *_ = general_gemm(
            x,
            gradient,
            out_dtype=self.dtype if main_grad is None else main_grad.dtype,
            accumulate=main_grad is not None and not self.overwrites(),
            layout="NT",
            out=main_grad,
            use_split_accumulator=self.splits,
            grad=True,
        )
        return (made if main_grad is None else None), None


def quantize_gradient(quantizer: Any, gradient: Any, rowwise: bool, columnwise: bool) -> Any:
    """A gradient in FP8, for the products that need it."""
    if isinstance(gradient, QuantizedTensorStorage):
        return gradient
    # A copy along the columns alone cannot be made everywhere.
    quantizer.set_usage(rowwise=rowwise or columnwise, columnwise=columnwise)
    return quantizer(gradient)


class _QuantizedLinear(torch.autograd.Function):
    """weight [m, k], x [.., k], bias [m] or None -> [.., m]."""

    @staticmethod
    def forward(ctx: Any, weight: Any, x: Any, bias: torch.Tensor | None, call: Call) -> Any:
        spread, quantizer = call.spread, call.quantizers.input
        gathers = spread.mode == "column" and spread.sequence_parallel
        as_bytes = travels_as_bytes(quantizer)
        ctx.shape, ctx.x_dtype = x.shape, x.dtype
        trains = call.differentiates and weight.requires_grad
        # A gathered tensor of blocks is made from all ranks' parts in high precision.
        keeps_input = call.keeps_input or (gathers and not as_bytes)
        total, kept = x, x
        if not isinstance(x, QuantizedTensorStorage) and (as_bytes or not gathers):
            columnwise = trains and not keeps_input and not gathers
            quantizer.set_usage(rowwise=True, columnwise=columnwise)
            total = quantizer(x)
            kept = x if keeps_input else total
        elif isinstance(x, QuantizedTensorStorage):
            total.update_usage(rowwise_usage=True)
        local = total
        if gathers:
            quantizer.set_usage(rowwise=True, columnwise=False)
            total, _ = gather_along_first_dim(total, spread.group, quantizer=quantizer)
        factor = quantize_weight(call, weight, call.differentiates and x.requires_grad)
        out = _product(call, factor, total, bias, x.device)
        if not call.differentiates:
            return out
        if trains and kept is local and kept is not x and not gathers:
            kept.update_usage(rowwise_usage=False, columnwise_usage=True)
        ctx.call, ctx.gathers, ctx.biased = call, gathers, bias is not None
        if is_cpu_offload_enabled():
            mark_activation_offload(kept)
            mark_not_offload(weight, factor)
        parts, ctx.owners = prepare_for_saving(kept if trains else None, factor)
        ctx.save_for_backward(*parts)
        if spread.fused and spread.first and trains:
            call.first.pending = True
        ctx.gradient = QuantizedWeightGradient(
            weight, spread.fused, call.first, call.dtype, call.recipe
        )
        ctx.updates_scales = (
            x.requires_grad or weight.requires_grad
        ) and FP8GlobalStateManager.is_first_fp8_module()
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        x, factor = restore_from_saved(ctx.owners, ctx.saved_tensors)
        ctx.owners = None
        call: Call = ctx.call
        spread, quantizers, group = call.spread, call.quantizers, call.spread.group
        needs_weight, needs_x, needs_bias = ctx.needs_input_grad[:3]
        gradient = gradients[0]
        grad_bias = None
        if not isinstance(gradient, QuantizedTensorStorage):
            gradient = gradient.reshape(-1, gradient.shape[-1]).contiguous()
        if ctx.biased and needs_bias:
            rows = gradient
            if isinstance(rows, QuantizedTensorStorage):
                rows = rows.dequantize(dtype=call.dtype)
            grad_bias = rows.reshape(-1, rows.shape[-1]).sum(0)
        if spread.mode == "row" and spread.sequence_parallel:
            quantizers.gradient.set_usage(rowwise=True, columnwise=needs_weight)
            gradient, _ = gather_along_first_dim(gradient, group, quantizer=quantizers.gradient)
        gradient = quantize_gradient(quantizers.gradient, gradient, needs_x, needs_weight)
        gathering = None
        if needs_weight:
            x, gathering = _whole_input(ctx, x)
        grad_x = reducing = None
        if needs_x:
            gradient.update_usage(rowwise_usage=True)
            factor.update_usage(columnwise_usage=True)
            communicates = spread.mode == "column"
            grad_x, *_ = general_gemm(
                factor,
                gradient,
                out_dtype=call.dtype,
                quantization_params=None if communicates else quantizers.grad_input,
                layout="NN",
                use_split_accumulator=splits_sums(call.recipe, "dgrad"),
                grad=True,
            )
            if communicates and ctx.gathers:
                grad_x, reducing = reduce_scatter_along_first_dim(grad_x, group, async_op=True)
            elif communicates:
                grad_x, reducing = allreduce(grad_x, group, async_op=True)
        grad_weight = None
        if needs_weight:
            if gathering is not None:
                gathering.wait()
            x.update_usage(columnwise_usage=True)
            gradient.update_usage(columnwise_usage=True)
            product: QuantizedWeightGradient = ctx.gradient
            if spread.store is not None:
                spread.store.put([x, gradient], product)
            else:
                grad_weight, _ = product(x, gradient)
            grad_weight = product.for_autograd(grad_weight)
        if reducing is not None:
            reducing.wait()
        if ctx.updates_scales and not torch.cuda.is_current_stream_capturing():
            FP8GlobalStateManager.reduce_and_update_fp8_tensors(forward=False)
        if grad_x is not None:
            grad_x = grad_x.view(ctx.shape)
        return grad_weight, grad_x, grad_bias, None


def _product(
    call: Call, factor: Any, x: Any, bias: torch.Tensor | None, device: torch.device
) -> Any:
    """The forward pass's product, summed over the ranks of a row-parallel layer."""
    spread = call.spread
    if not spread.computes:
        size = (*x.size()[:-1], factor.size()[0])
        return torch.empty(size, dtype=call.dtype, device=device)
    if bias is not None and bias.dtype != call.dtype:
        bias = bias.to(call.dtype)
    out, *_ = general_gemm(
        factor,
        x,
        out_dtype=call.dtype,
        quantization_params=call.quantizers.output,
        bias=bias,
        use_split_accumulator=splits_sums(call.recipe, "fprop"),
    )
    if spread.mode != "row":
        return out
    if spread.sequence_parallel:
        return reduce_scatter_along_first_dim(out, spread.group)[0]
    if spread.symmetric is not None:
        return symmetric_all_reduce(out, spread.group, all_reduce_type=spread.symmetric)[0]
    return allreduce(out, spread.group)[0]


def _whole_input(ctx: Any, x: Any) -> tuple[Any, Any]:
    """(the input's FP8 copy for the weight gradient, handle of its gathering)."""
    call: Call = ctx.call
    quantizer = call.quantizers.input
    if not ctx.gathers:
        if isinstance(x, QuantizedTensorStorage):
            return x, None
        quantizer.set_usage(rowwise=travels_as_bytes(quantizer), columnwise=True)
        return quantizer(x), None
    as_bytes = travels_as_bytes(quantizer)
    quantizer.set_usage(rowwise=as_bytes, columnwise=not as_bytes)
    return gather_along_first_dim(x, call.spread.group, async_op=True, quantizer=quantizer)


def quantizers_of(module: Any, product: int, fp8_output: bool, fp8_grad: bool) -> Quantizers:
    """The module's quantizers for its product number ``product``."""
    forward = module.quantizers["scaling_fwd"][3 * product : 3 * product + 3]
    backward = module.quantizers["scaling_bwd"][2 * product : 2 * product + 2]
    forward[0].internal = True
    backward[0].internal = True
    return Quantizers(
        forward[0],
        forward[1],
        forward[2] if fp8_output else None,
        backward[0],
        backward[1] if fp8_grad else None,
    )


def quantized_linear(
    module: Any,
    weight: torch.Tensor,
    x: torch.Tensor,
    bias: torch.Tensor | None,
    spread: Spread,
    is_first_microbatch: bool | None,
    fp8_output: bool | None = False,
    fp8_grad: bool | None = False,
    product: int = 0,
    cache: str = "weight",
    first: First | None = None,
) -> torch.Tensor:
    """``x @ weight^T + bias`` as the module's FP8 recipe says.

    :param weight: [m, k]; plain, or FP8 itself.
    :param x: [.., k].
    :param bias: [m] or None.
    :param product: number of the product in a module with several.
    :param cache: key under which the module keeps the weight's FP8 copy between microbatches.
    :param first: see :func:`linear`; default: the module's.
    :raises AssertionError: sizes that FP8 products do not take, or an input that delayed scaling
        is asked to keep.
    """
    first = module._first if first is None else first
    quantizers = quantizers_of(module, product, bool(fp8_output), bool(fp8_grad))
    if not module.fp8:
        quantizers.input.calibrate(x)
        quantizers.weight.calibrate(weight)
        return linear(weight, x, bias, module.activation_dtype, spread, first)
    assert_dim_for_fp8_exec(x, weight)
    keeps_input = bool(getattr(module, "save_original_input", False))
    if keeps_input:
        assert not isinstance(quantizers.input, Float8Quantizer), (
            "DelayedScaling recipe is not supported with save_original_input"
        )
    if not isinstance(weight, QuantizedTensor):
        quantizers.weight.internal = True
    skip = None
    if FP8GlobalStateManager.fp8_graph_capturing():
        skip = FP8GlobalStateManager.get_skip_fp8_weight_update_tensor()
    if skip is not None:
        is_first_microbatch = False
    call = Call(
        module=module,
        quantizers=quantizers,
        spread=spread,
        dtype=module.activation_dtype,
        recipe=FP8GlobalStateManager.get_fp8_recipe(),
        cache=None if is_first_microbatch is None else cache,
        updates=is_first_microbatch is None or is_first_microbatch,
        skip_update=skip,
        keeps_input=keeps_input,
        differentiates=torch.is_grad_enabled(),
        first=first,
    )
    output: torch.Tensor = _QuantizedLinear.apply(  # type: ignore[no-untyped-call]
        weight, x, bias, call
    )
    return output
