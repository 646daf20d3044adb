"""``Linear``, ``LayerNormLinear``, ``RMSNorm`` and ``LayerNorm`` of one rank: the kernels alone.

Transformer Engine's own way carries what quantization, user buffers and tensor parallelism need;
norms are operations of its fuser, which is built and run anew for every call. In FP8, while layers
train in higher precision, quantizers, scales and the order of computations are Transformer
Engine's.

Legend: s rows (sequence and batch), k input size, m output size, h hidden size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import torch
from torch.nn import functional

from accel_bridge.kernels import NORM_BACKWARD, NORM_FORWARD
from accel_bridge.kernels.active import kernel
from accel_bridge.libraries.main_grad import add_to, placeholder
from accel_bridge.libraries.transformer_engine_torch._tensors import (
    ATTRIBUTES,
    Operand,
    flat,
    operand,
)
from accel_bridge.libraries.transformer_engine_torch.enums import TORCH_DTYPE
from accel_bridge.libraries.transformer_engine_torch.fast import (
    can_quantize,
    interferes,
    is_alone,
    is_plain,
    needs_fp8,
    recomputes,
)
from accel_bridge.libraries.transformer_engine_torch.fast.grouped import (
    Call,
    by_block,
    quantizers_of_one_kind,
)
from accel_bridge.libraries.transformer_engine_torch.gemm import gemm, gemm_into
from accel_bridge.libraries.transformer_engine_torch.quantization import PerTensor, format_of


class _Norm(torch.autograd.Function):
    """x [.., h], weight and bias [h] -> [.., h]."""

    @staticmethod
    def forward(
        ctx: Any, x: Any, weight: Any, bias: Any, eps: float, zero_centered: bool, centered: bool
    ) -> Any:
        rows = x.contiguous().view(-1, x.shape[-1])
        output, mean, rsigma = kernel(NORM_FORWARD)(
            rows, weight, bias, eps=eps, zero_centered_gamma=zero_centered, centered=centered
        )
        ctx.save_for_backward(rows, weight, mean, rsigma)
        ctx.zero_centered = zero_centered
        return output.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        x, weight, mean, rsigma = ctx.saved_tensors
        shape = gradients[0].shape
        of_x, of_weight, of_bias = kernel(NORM_BACKWARD)(
            gradients[0].contiguous().view(x.shape),
            x,
            weight,
            mean,
            rsigma,
            zero_centered_gamma=ctx.zero_centered,
        )
        return of_x.view(shape), of_weight, of_bias, None, None, None


def rms_norm_forward(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``RMSNorm.forward``."""
    return _forward(original, module, centered=False)


def layer_norm_forward(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``LayerNorm.forward``."""
    return _forward(original, module, centered=True)


def _forward(original: Callable[..., Any], module: Any, centered: bool) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        weight = self._parameters.get("weight")
        bias = self._parameters.get("bias")
        if (
            args
            or kwargs
            or weight is None
            or weight.dim() != 1
            or not is_plain(input, weight, bias)
            or not input.is_cuda
            or input.shape[-1] != weight.shape[0]
            or interferes()
        ):
            return original(self, input, *args, **kwargs)
        return _Norm.apply(input, weight, bias, self.eps, self.zero_centered_gamma, centered)

    return forward


#: What sizes and, by the format, rows must be multiples of.
_SIZE, _ROWS, _ROWS_OF_BLOCKS = 16, 8, 16
#: Key under which a layer keeps its weight's FP8 copy between microbatches.
_CACHE: Final = "weight, both ways"


class Norm(NamedTuple):
    """The norm before the GEMM: its parameters [k] and options."""

    weight: Any
    bias: Any
    eps: float
    zero_centered: bool
    centered: bool


class _Sides(NamedTuple):
    """FP8 numbers [s, k], and their transpose."""

    rowwise: Operand | None
    columnwise: Operand | None


def _quantized(quantizer: Any, rows: torch.Tensor, rowwise: bool, columnwise: bool) -> _Sides:
    form = format_of(quantizer).format
    if isinstance(form, PerTensor):
        transposed = None
        if columnwise:
            transposed = rows.new_empty(rows.shape[::-1], dtype=TORCH_DTYPE[quantizer.dtype])
        numbers, scale_inv = form.numbers(quantizer, rows, transposed, None)
        return _Sides(
            Operand(numbers, scale_inv),
            None if transposed is None else Operand(transposed, scale_inv),
        )
    quantizer.set_usage(rowwise=rowwise, columnwise=columnwise)
    made = form.quantize(quantizer, rows)
    found = SimpleNamespace(
        _fp8_dtype=quantizer.dtype,
        _is_2D_scaled=quantizer.block_scaling_dim == 2,
        **{ATTRIBUTES[keyword]: value for keyword, value in made.items()},
    )
    return _Sides(
        operand(found, columnwise=False) if rowwise else None,
        operand(found, columnwise=True) if columnwise else None,
    )


def _weight(call: Call, weight: torch.Tensor) -> _Sides:
    """The weight [m, k], from the layer's copy where that is up to date."""
    if call.updates is None:
        return _quantized(call.quantizers[1], weight.detach(), True, True)
    copies = call.layer._fp8_workspaces
    kept, own = copies.get(_CACHE), copies.pop("weight", None)
    # A microbatch that went the long way, perhaps with new weights, left a copy of its own.
    if call.updates or kept is None or own is not None:
        kept = copies[_CACHE] = _quantized(call.quantizers[1], weight.detach(), True, True)
    return kept  # type: ignore[no-any-return]


class _LinearFP8(torch.autograd.Function):
    """weight [m, k], x [.., k], bias [m] or None, the norm's parameters [k] or None -> [.., m]."""

    @staticmethod
    def forward(
        ctx: Any, weight: Any, x: Any, bias: Any, gamma: Any, beta: Any, call: Call, options: Any
    ) -> Any:
        of_weight, norm, states = options
        rows, normed = flat(x), []
        if norm is not None:
            rows, mean, rsigma = kernel(NORM_FORWARD)(
                rows,
                gamma,
                beta,
                eps=norm.eps,
                zero_centered_gamma=norm.zero_centered,
                centered=norm.centered,
            )
            normed = [flat(x), mean, rsigma]
        keeps = getattr(call.layer, "save_original_input", False)
        quantized = _quantized(call.quantizers[0], rows, True, not keeps)
        factor = _weight(call, weight)
        assert quantized.rowwise is not None
        assert factor.rowwise is not None
        out = gemm(
            quantized.rowwise, factor.rowwise, call.dtype, bias=bias, precise=call.precise("fprop")
        )
        kept = quantized.columnwise or (rows, None)
        ctx.save_for_backward(*kept, *(factor.columnwise or ()), gamma, *normed)
        ctx.call, ctx.of_weight, ctx.norm, ctx.states = call, of_weight, norm, states
        ctx.shape, ctx.biased = x.shape, bias is not None
        ctx.updates = states.is_first_fp8_module()
        return out.view(*x.shape[:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        x, x_scale_inv, weight, weight_scale_inv, gamma, *normed = ctx.saved_tensors
        call: Call = ctx.call
        gradient = flat(gradients[0]).contiguous()
        needs_x = ctx.needs_input_grad[1] or ctx.norm is not None
        of_bias = gradient.sum(0) if ctx.biased else None
        rows = _quantized(call.quantizers[2], gradient, needs_x, True)
        columns = Operand(x, x_scale_inv)
        if x_scale_inv is None:
            again = _quantized(call.quantizers[0], x, False, True)
            assert again.columnwise is not None
            columns = again.columnwise
        of_x = of_gamma = of_beta = None
        if needs_x:
            assert rows.rowwise is not None
            factor = Operand(weight, weight_scale_inv)
            of_x = gemm(rows.rowwise, factor, call.dtype, precise=call.precise("dgrad"))
        assert rows.columnwise is not None
        of_weight = ctx.of_weight
        total = of_weight.weight.main_grad if of_weight.fused else None
        made: torch.Tensor | None = None
        first = of_weight.first
        if total is None or not gemm_into(rows.columnwise, columns, total, not first):
            dtype = call.dtype if total is None else total.dtype
            made = gemm(rows.columnwise, columns, dtype, precise=call.precise("wgrad"))
        if total is not None:
            if made is not None:
                total.copy_(made) if first else total.add_(made)
            made = placeholder(of_weight.weight, total)
        if ctx.norm is not None and of_x is not None:
            inner, mean, rsigma = normed
            of_x, of_gamma, of_beta = kernel(NORM_BACKWARD)(
                of_x, inner, gamma, mean, rsigma, zero_centered_gamma=ctx.norm.zero_centered
            )
        if ctx.updates:
            ctx.states.reduce_and_update_fp8_tensors(forward=False)
        of_x = None if of_x is None else of_x.view(ctx.shape)
        return made, of_x, of_bias, of_gamma, of_beta, None, None


def linear_fp8(
    layer: Any,
    states: Any,
    inp: Any,
    weight: Any,
    bias: Any,
    of_weight: Any,
    updates: bool | None,
    norm: Norm | None = None,
) -> Any:
    """[.., m] of plain tensors, or NotImplemented where Transformer Engine's own way is needed.

    :param states: its ``FP8GlobalStateManager``.
    :param bias: added in the GEMM, or None.
    :param of_weight: where the weight's gradient goes.
    :param updates: ``is_first_microbatch``.
    """
    if not _is_usual(layer, states, inp, weight, bias):
        return NotImplemented
    layer.init_fp8_metadata()  # the first call makes the quantizers
    if not _kinds(layer, inp):
        return NotImplemented
    inp = layer.prepare_forward(inp)
    try:
        kinds, recipe = _kinds(layer, inp), states.get_fp8_recipe()
        if not kinds:  # the recipe has changed
            return NotImplemented
        call = Call(layer, [], kinds, recipe, layer.activation_dtype, False, updates)
        gamma, beta = (None, None) if norm is None else norm[:2]
        return _LinearFP8.apply(weight, inp, bias, gamma, beta, call, (of_weight, norm, states))
    finally:
        layer.end_forward()


def _kinds(layer: Any, inp: torch.Tensor) -> Any:
    """Quantizers of input, weight and gradient; None where they need the long way."""
    forward, backward = layer.quantizers.values()
    firsts = quantizers_of_one_kind(layer, lambda: ([forward[0]], [forward[1]], [backward[0]]))
    if firsts is None:
        return None
    rows = inp.numel() // inp.shape[-1]
    return None if rows % (_ROWS_OF_BLOCKS if by_block(firsts[0]) else _ROWS) else firsts


def _is_usual(layer: Any, states: Any, inp: Any, weight: Any, bias: Any) -> bool:
    """Whether the layer trains with a known recipe, and nothing else."""
    if not can_quantize(states):
        return False
    if not (torch.is_grad_enabled() and weight.requires_grad and inp.numel()):
        return False
    if states.is_fp8_calibration() or states.fp8_graph_capturing() or layer.fp8_calibration:
        return False
    if recomputes() or not hasattr(layer, "end_forward"):
        return False
    if getattr(states.get_fp8_recipe(), "backward_override", None) is not None:
        return False
    if bias is not None and bias.dtype == torch.float32:  # added in bfloat16
        return False
    return not any(size % _SIZE for size in weight.shape)


class WeightGradient:
    """Where a weight's gradient goes.

    :param weight: the parameter, with the attributes that frameworks set on it.
    :param fused: add it to ``main_grad``.
    :param first: it replaces what ``main_grad`` holds.
    """

    __slots__ = ("first", "fused", "weight")

    def __init__(self, weight: Any, fused: bool, first: bool) -> None:
        self.weight = weight
        self.fused = fused
        self.first = first

    def __call__(self, x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor | None:
        """What autograd gets for the weight [m, k].

        :param x: [s, k].
        :param gradient: [s, m].
        """
        if not self.fused:
            return torch.mm(gradient.t(), x)
        main_grad = self.weight.main_grad
        add_to(main_grad, x, gradient, self.first)
        return placeholder(self.weight, main_grad)


class _Linear(torch.autograd.Function):
    """weight [m, k], x [.., k], bias [m] or None -> [.., m]."""

    @staticmethod
    def forward(ctx: Any, weight: Any, x: Any, bias: Any, of_weight: WeightGradient) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.of_weight, ctx.biased = of_weight, bias is not None
        rows = x.reshape(-1, x.shape[-1])
        return functional.linear(rows, weight, bias).view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        rows = gradients[0].reshape(-1, gradients[0].shape[-1]).contiguous()
        needs_weight, needs_x = ctx.needs_input_grad[:2]
        of_x = torch.mm(rows, weight).view(x.shape) if needs_x else None
        of_weight = of_bias = None
        if needs_weight:
            of_weight = ctx.of_weight(x.reshape(-1, x.shape[-1]), rows)
            of_bias = _of_bias(rows) if ctx.biased else None
        return of_weight, of_x, of_bias, None


class _NormLinear(torch.autograd.Function):
    """x [.., k], the norm's weight and bias [k], weight [m, k], bias [m] -> [.., m]."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Any,
        gamma: Any,
        beta: Any,
        weight: Any,
        bias: Any,
        of_weight: WeightGradient,
        norm: tuple[float, bool, bool],
    ) -> Any:
        eps, zero_centered, centered = norm
        rows = x.reshape(-1, x.shape[-1])
        normal, mean, rsigma = kernel(NORM_FORWARD)(
            rows, gamma, beta, eps=eps, zero_centered_gamma=zero_centered, centered=centered
        )
        ctx.save_for_backward(rows, gamma, mean, rsigma, normal, weight)
        ctx.of_weight, ctx.biased, ctx.shape = of_weight, bias is not None, x.shape
        ctx.zero_centered = zero_centered
        return functional.linear(normal, weight, bias).view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        x, gamma, mean, rsigma, normal, weight = ctx.saved_tensors
        rows = gradients[0].reshape(-1, gradients[0].shape[-1]).contiguous()
        of_normal = torch.mm(rows, weight)
        of_weight = of_bias = None
        if ctx.needs_input_grad[3]:
            of_weight = ctx.of_weight(normal, rows)
            of_bias = _of_bias(rows) if ctx.biased else None
        of_x, of_gamma, of_beta = kernel(NORM_BACKWARD)(
            of_normal, x, gamma, mean, rsigma, zero_centered_gamma=ctx.zero_centered
        )
        return of_x.view(ctx.shape), of_gamma, of_beta, of_weight, of_bias, None, None


def _of_bias(rows: torch.Tensor) -> torch.Tensor:
    return rows.sum(0, dtype=torch.float32).to(rows.dtype)


def linear_forward(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``Linear.forward``.

    :param original: Transformer Engine's own.
    :param module: the module that defines it.
    """
    states = module.FP8GlobalStateManager

    @functools.wraps(original)
    def forward(
        self: Any, inp: Any, is_first_microbatch: bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        weight, bias = _parameters(self)
        if (
            any(args)
            or any(kwargs.values())
            or weight is None
            or not is_plain(inp, weight, bias)
            or not inp.is_cuda
            or interferes()
        ):
            return original(self, inp, is_first_microbatch, *args, **kwargs)
        of_weight, added = _of(weight, self, is_first_microbatch), _added(self, bias)
        if needs_fp8(self, states):
            out = linear_fp8(self, states, inp, weight, added, of_weight, is_first_microbatch)
            if out is NotImplemented:
                return original(self, inp, is_first_microbatch)
        else:
            out = _Linear.apply(weight, inp, added, of_weight)
        return _with_bias(self, out, bias)

    return forward


def norm_linear_forward(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``LayerNormLinear.forward``."""
    states = module.FP8GlobalStateManager

    @functools.wraps(original)
    def forward(
        self: Any, inp: Any, is_first_microbatch: bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        weight, bias = _parameters(self)
        gamma = self._parameters.get("layer_norm_weight")
        beta = self._parameters.get("layer_norm_bias")
        if (
            any(args)
            or any(kwargs.values())
            or weight is None
            or not weight.requires_grad
            or self.return_layernorm_output
            or self.return_layernorm_output_gathered
            or not is_plain(inp, weight, bias, gamma, beta)
            or not inp.is_cuda
            or interferes()
        ):
            return original(self, inp, is_first_microbatch, *args, **kwargs)
        norm = (self.eps, self.zero_centered_gamma, self.normalization == "LayerNorm")
        of_weight, added = _of(weight, self, is_first_microbatch), _added(self, bias)
        if needs_fp8(self, states):
            given = (self, states, inp, weight, added, of_weight, is_first_microbatch)
            out = linear_fp8(*given, Norm(gamma, beta, *norm))
            if out is NotImplemented:
                return original(self, inp, is_first_microbatch)
        else:
            out = _NormLinear.apply(inp, gamma, beta, weight, added, of_weight, norm)
        return _with_bias(self, out, bias)

    return forward


def _parameters(layer: Any) -> tuple[Any, Any]:
    """Weight and bias; no weight where the layer is more than one rank's GEMM."""
    if not is_alone(layer):
        return None, None
    named = layer._parameters
    weight = named.get(layer.weight_names[0])
    if weight is None or "__fsdp_param__" in weight.__dict__:
        return None, None
    return weight, named[layer.bias_names[0]] if layer.use_bias else None


def _of(weight: Any, layer: Any, is_first_microbatch: bool | None) -> WeightGradient:
    first = bool(is_first_microbatch) or getattr(weight, "overwrite_main_grad", False)
    return WeightGradient(weight, layer.fuse_wgrad_accumulation, first)


def _added(layer: Any, bias: Any) -> Any:
    return bias if layer.apply_bias and not layer.gemm_bias_unfused_add else None


def _with_bias(layer: Any, out: Any, bias: Any) -> Any:
    if layer.gemm_bias_unfused_add:
        out = out + bias
    return (out, bias) if layer.return_bias else out
