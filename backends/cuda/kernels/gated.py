"""Gated activations, forward and backward in one pass each.

Legend: r rows, f feed-forward size; the input holds the gate [r, f] and then the linear part.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.kernels._choice import not_for_triton
from accel_bridge.backends.cuda.kernels._launch import Quick, blocks, power_of_two, warps

#: Columns that a program holds.
_BLOCK = 2048
_SILU: Final = 0
_GELU_TANH: Final = 1
_GELU_ERF: Final = 2
_QUICK_GELU: Final = 3


@triton.jit
def activation(x, KIND: tl.constexpr):
    """The activation of x, and its derivative."""
    if KIND == 3:
        share = tl.sigmoid(1.702 * x)
        return x * share, share + 1.702 * x * share * (1.0 - share)
    if KIND == 2:
        share = 0.5 * (1.0 + tl.math.erf(x * 0.7071067811865476))
        return x * share, share + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
    if KIND == 1:
        # 0.5 (1 + tanh(u)) is sigmoid(2 u), which has no cancellation.
        share = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        inner = 1.5957691216057308 * (1.0 + 0.134145 * x * x)
        return x * share, share + x * share * (1.0 - share) * inner
    share = tl.sigmoid(x)
    return x * share, share + x * share * (1.0 - share)


@triton.jit
def _parts(
    place,
    bias,
    column,
    inside,
    f,
    bound,
    offset,
    BIASED: tl.constexpr,
    BOUNDED: tl.constexpr,
):
    """Gate and linear part of a row, and where a bound does not hold them."""
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    linear = tl.load(place + f, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        gate += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        linear += tl.load(bias + f + column, mask=inside, other=0.0).to(tl.float32)
    free_gate, free_linear = inside, inside
    if BOUNDED:
        free_gate = gate <= bound
        free_linear = tl.abs(linear) <= bound
        # Not a minimum and a maximum, which would swallow NaN.
        gate = tl.where(gate > bound, bound, gate)
        linear = tl.where(linear > bound, bound, tl.where(linear < -bound, -bound, linear))
    return gate, linear + offset, free_gate, free_linear


@Quick
@triton.jit(do_not_specialize=["bound", "offset"])
def _forward(
    x,
    bias,
    weights,
    y,
    stride,
    f,
    bound,
    offset,
    BIASED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BOUNDED: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Part of one row: ``activation(gate) * linear * weight``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < f
    gate, linear, _, _ = _parts(
        x + row * stride + column, bias, column, inside, f, bound, offset, BIASED, BOUNDED
    )
    active, _ = activation(gate, KIND)
    result = active * linear
    if WEIGHTED:
        result *= tl.load(weights + row).to(tl.float32)
    tl.store(y + row * f + column, result.to(y.dtype.element_ty), mask=inside)


@Quick
@triton.jit(do_not_specialize=["bound", "offset"])
def _backward(
    grad_y,
    x,
    bias,
    weights,
    grad_x,
    grad_weights,
    stride,
    f,
    span,
    bound,
    offset,
    BIASED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BOUNDED: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``span`` columns of one row: the gradients of gate and linear part, and of the weight.

    A weight needs its whole row.
    """
    row = tl.program_id(0).to(tl.int64)
    kind = grad_x.dtype.element_ty
    if WEIGHTED:
        weight = tl.load(weights + row).to(tl.float32)
        sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(tl.program_id(1) * span, (tl.program_id(1) + 1) * span, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < f
        gate, linear, free_gate, free_linear = _parts(
            x + row * stride + column, bias, column, inside, f, bound, offset, BIASED, BOUNDED
        )
        gradient = tl.load(grad_y + row * f + column, mask=inside, other=0.0).to(tl.float32)
        active, slope = activation(gate, KIND)
        if WEIGHTED:
            sums += tl.where(inside, gradient * active * linear, 0.0)
            gradient *= weight
        of_gate, of_linear = gradient * linear * slope, gradient * active
        if BOUNDED:
            of_gate = tl.where(free_gate, of_gate, 0.0)
            of_linear = tl.where(free_linear, of_linear, 0.0)
        result = grad_x + row * 2 * f + column
        tl.store(result, of_gate.to(kind), mask=inside)
        tl.store(result + f, of_linear.to(kind), mask=inside)
    if WEIGHTED:
        tl.store(grad_weights + row, tl.sum(sums, 0).to(grad_weights.dtype.element_ty))


class _Options(NamedTuple):
    """What a call is made of, besides its tensors."""

    kind: int
    clamp: float | None = None
    offset: float = 0.0


class _Gated(torch.autograd.Function):
    """y [..., f] of x [..., 2 f], a bias [2 f] and a weight of each row, or None."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        weights: torch.Tensor | None,
        options: _Options,
    ) -> torch.Tensor:
        f = x.shape[-1] // 2
        rows = x.reshape(-1, 2 * f)
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        y = torch.empty(rows.shape[0], f, dtype=x.dtype, device=x.device)
        block = min(_BLOCK, power_of_two(f))
        factors = None if weights is None else weights.reshape(-1).contiguous()
        if rows.shape[0]:
            _forward[(rows.shape[0], blocks(f, block))](
                rows,
                rows if bias is None else bias,
                rows if factors is None else factors,
                y,
                rows.stride(0),
                f,
                float(options.clamp or 0.0),
                float(options.offset),
                BIASED=bias is not None,
                WEIGHTED=factors is not None,
                BOUNDED=options.clamp is not None,
                KIND=options.kind,
                BLOCK=block,
                num_warps=warps(block),
            )
        ctx.save_for_backward(rows, bias, factors)
        ctx.options, ctx.shape = options, x.shape
        ctx.of_weights = None if weights is None else weights.shape
        return y.view(*x.shape[:-1], f)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, bias, factors = ctx.saved_tensors
        options: _Options = ctx.options
        f = rows.shape[-1] // 2
        grad_y = gradients[0].reshape(-1, f).contiguous()
        grad_x = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
        grad_weights = None if factors is None else torch.empty_like(factors)
        block = min(_BLOCK, power_of_two(f))
        span = block if factors is None else blocks(f, block) * block
        if rows.shape[0]:
            _backward[(rows.shape[0], blocks(f, span))](
                grad_y,
                rows,
                rows if bias is None else bias,
                rows if factors is None else factors,
                grad_x,
                rows if grad_weights is None else grad_weights,
                rows.stride(0),
                f,
                span,
                float(options.clamp or 0.0),
                float(options.offset),
                BIASED=bias is not None,
                WEIGHTED=factors is not None,
                BOUNDED=options.clamp is not None,
                KIND=options.kind,
                BLOCK=block,
                num_warps=warps(block),
            )
        grad_bias = None if bias is None else grad_x.sum(0)
        of_weights = None if grad_weights is None else grad_weights.view(ctx.of_weights)
        return grad_x.view(ctx.shape), grad_bias, of_weights, None


def swiglu(input: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The contract ``swiglu``."""
    output: torch.Tensor = _Gated.apply(input, bias, None, _Options(_SILU))
    return output


def geglu(
    input: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    approximate: Literal["none", "tanh"] = "tanh",
) -> torch.Tensor:
    """The contract ``geglu``."""
    kind = _GELU_TANH if approximate == "tanh" else _GELU_ERF
    output: torch.Tensor = _Gated.apply(input, bias, None, _Options(kind))
    return output


def gated_activation(
    input: torch.Tensor,
    bias: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    *,
    activation: Literal["silu", "quick_gelu"] = "silu",
    clamp: float | None = None,
    offset: float = 0.0,
) -> torch.Tensor:
    """The contract ``gated_activation``."""
    options = _Options(_SILU if activation == "silu" else _QUICK_GELU, clamp, offset)
    output: torch.Tensor = _Gated.apply(input, bias, weights, options)
    return output


def supports(
    input: torch.Tensor,
    bias: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    **_: object,
) -> str | None:
    """Where this module's kernels apply."""
    return not_for_triton(input, bias, weights)
