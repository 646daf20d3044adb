"""SwiGLU and GEGLU, forward and backward in one pass each.

Legend: r rows, f feed-forward size; the input holds the gate [r, f] and then the linear part.
"""

from __future__ import annotations

from typing import Any, Final, Literal

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


@triton.jit
def activation(x, KIND: tl.constexpr):
    """The activation of x, and its derivative."""
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


@Quick
@triton.jit
def _forward(x, bias, y, stride, f, BIASED: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Part of one row: ``activation(gate) * linear``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < f
    place = x + row * stride + column
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    linear = tl.load(place + f, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        gate += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        linear += tl.load(bias + f + column, mask=inside, other=0.0).to(tl.float32)
    active, _ = activation(gate, KIND)
    tl.store(y + row * f + column, (active * linear).to(y.dtype.element_ty), mask=inside)


@Quick
@triton.jit
def _backward(
    grad_y,
    x,
    bias,
    grad_x,
    stride,
    f,
    BIASED: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Part of one row: the gradients of gate and linear part."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < f
    place = x + row * stride + column
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    linear = tl.load(place + f, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        gate += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        linear += tl.load(bias + f + column, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(grad_y + row * f + column, mask=inside, other=0.0).to(tl.float32)
    active, slope = activation(gate, KIND)
    result = grad_x + row * 2 * f + column
    kind = grad_x.dtype.element_ty
    tl.store(result, (gradient * linear * slope).to(kind), mask=inside)
    tl.store(result + f, (gradient * active).to(kind), mask=inside)


class _Gated(torch.autograd.Function):
    """y [..., f] of x [..., 2 f]."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor | None, kind: int) -> torch.Tensor:
        f = x.shape[-1] // 2
        rows = x.reshape(-1, 2 * f)
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        y = torch.empty(rows.shape[0], f, dtype=x.dtype, device=x.device)
        block = min(_BLOCK, power_of_two(f))
        if rows.shape[0]:
            _forward[(rows.shape[0], blocks(f, block))](
                rows,
                rows if bias is None else bias,
                y,
                rows.stride(0),
                f,
                BIASED=bias is not None,
                KIND=kind,
                BLOCK=block,
                num_warps=warps(block),
            )
        ctx.save_for_backward(rows, bias)
        ctx.kind, ctx.shape = kind, x.shape
        return y.view(*x.shape[:-1], f)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, bias = ctx.saved_tensors
        f = rows.shape[-1] // 2
        grad_y = gradients[0].reshape(-1, f).contiguous()
        grad_x = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
        block = min(_BLOCK, power_of_two(f))
        if rows.shape[0]:
            _backward[(rows.shape[0], blocks(f, block))](
                grad_y,
                rows,
                rows if bias is None else bias,
                grad_x,
                rows.stride(0),
                f,
                BIASED=bias is not None,
                KIND=ctx.kind,
                BLOCK=block,
                num_warps=warps(block),
            )
        grad_bias = None if bias is None else grad_x.sum(0)
        return grad_x.view(ctx.shape), grad_bias, None


def swiglu(input: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The contract ``swiglu``."""
    output: torch.Tensor = _Gated.apply(input, bias, _SILU)
    return output


def geglu(
    input: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    approximate: Literal["none", "tanh"] = "tanh",
) -> torch.Tensor:
    """The contract ``geglu``."""
    kind = _GELU_TANH if approximate == "tanh" else _GELU_ERF
    output: torch.Tensor = _Gated.apply(input, bias, kind)
    return output


def supports(input: torch.Tensor, bias: torch.Tensor | None = None, **_: object) -> str | None:
    """Where :func:`swiglu` and :func:`geglu` apply."""
    return not_for_triton(input, bias)
