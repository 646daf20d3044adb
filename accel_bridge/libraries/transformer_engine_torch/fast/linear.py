"""``Linear.forward`` and ``LayerNormLinear.forward`` of one rank: the GEMMs alone.

Transformer Engine's own way carries what quantization, user buffers and tensor parallelism need.

Legend: s rows (sequence and batch), k input size, m output size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from accel_bridge.kernels import NORM_BACKWARD, NORM_FORWARD, WEIGHT_GRADIENT
from accel_bridge.kernels.active import kernel
from accel_bridge.libraries.main_grad import placeholder
from accel_bridge.libraries.transformer_engine_torch.fast._conditions import (
    interferes,
    is_alone,
    is_plain,
    needs_fp8,
)
from accel_bridge.libraries.transformer_engine_torch.fast.linear_fp8 import Norm, linear_fp8


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


def add_to(
    main_grad: torch.Tensor, x: torch.Tensor, gradient: torch.Tensor, replaces: bool
) -> None:
    """``main_grad += gradient^T @ x``, or ``=``."""
    if replaces and main_grad.dtype == x.dtype == gradient.dtype:
        torch.mm(gradient.t(), x, out=main_grad)
        return
    kernel(WEIGHT_GRADIENT)(x, gradient, main_grad.zero_() if replaces else main_grad)


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
            out = _Linear.apply(weight, inp, added, of_weight)  # type: ignore[no-untyped-call]
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
            out = _NormLinear.apply(inp, gamma, beta, weight, added, of_weight, norm)  # type: ignore[no-untyped-call]
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
