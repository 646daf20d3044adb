"""Bias and GELU in one pass each way.

Legend: r rows, f feed-forward size.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional

from accel_bridge.backends.cuda.kernels._choice import LARGE, not_for_triton
from accel_bridge.backends.cuda.kernels._launch import Quick, blocks, power_of_two, warps
from accel_bridge.backends.cuda.kernels.gated import activation

#: Columns that a program holds.
_BLOCK = 2048


@Quick
@triton.jit
def _forward(x, bias, y, stride, f, BLOCK: tl.constexpr):
    """Part of one row: ``gelu(x + bias)``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < f
    value = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    active, _ = activation(value, 1)
    tl.store(y + row * f + column, active.to(y.dtype.element_ty), mask=inside)


@Quick
@triton.jit
def _backward(grad_y, x, bias, grad_x, stride, f, BLOCK: tl.constexpr):
    """Part of one row: the gradient of ``x + bias``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < f
    value = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    _, slope = activation(value, 1)
    gradient = tl.load(grad_y + row * f + column, mask=inside, other=0.0).to(tl.float32)
    result = (gradient * slope).to(grad_x.dtype.element_ty)
    tl.store(grad_x + row * f + column, result, mask=inside)


class _BiasGelu(torch.autograd.Function):
    """y [..., f] of x [..., f] and bias [f]."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        f = x.shape[-1]
        rows = x.reshape(-1, f)
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        y = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
        block = min(_BLOCK, power_of_two(f))
        if rows.shape[0]:
            _forward[(rows.shape[0], blocks(f, block))](
                rows, bias, y, rows.stride(0), f, BLOCK=block, num_warps=warps(block)
            )
        ctx.save_for_backward(rows, bias)
        ctx.shape = x.shape
        return y.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, bias = ctx.saved_tensors
        f = rows.shape[-1]
        grad_y = gradients[0].reshape(-1, f).contiguous()
        grad_x = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
        block = min(_BLOCK, power_of_two(f))
        if rows.shape[0]:
            _backward[(rows.shape[0], blocks(f, block))](
                grad_y, rows, bias, grad_x, rows.stride(0), f, BLOCK=block, num_warps=warps(block)
            )
        return grad_x.view(ctx.shape), grad_x.sum(0)


def bias_gelu(input: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The contract ``bias_gelu``; torch's operators serve small inputs, for a cheaper launch."""
    if input.numel() < LARGE:
        return functional.gelu(input + bias, approximate="tanh")
    output: torch.Tensor = _BiasGelu.apply(input, bias)
    return output


def supports(input: torch.Tensor, bias: torch.Tensor) -> str | None:
    """Where :func:`bias_gelu` applies."""
    if bias.dim() != 1:
        return f"a bias of shape {list(bias.shape)}"
    return not_for_triton(input, bias)
