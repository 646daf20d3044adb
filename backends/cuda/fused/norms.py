"""LayerNorm and RMSNorm over rows that fit into one program.

Legend: r rows, h hidden size, p programs of the backward pass.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.fused._launch import power_of_two, warps
from accel_bridge.backends.cuda.fused._quick import Quick

#: Widest row that one program holds in its registers.
WIDEST = 16384


@Quick
@triton.jit
def _forward(
    x,
    weight,
    bias,
    y,
    means,
    scales,
    stride,
    h,
    eps,
    CENTERED: tl.constexpr,
    BIASED: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row: ``(x - mean) / sqrt(var + eps) * (weight + SHIFT) + bias``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < h
    value = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    if CENTERED:
        mean = tl.sum(value, 0) / h
        value = tl.where(inside, value - mean, 0.0)
        tl.store(means + row, mean)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / h + eps)
    tl.store(scales + row, scale)
    gamma = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + SHIFT
    result = value * scale * gamma
    if BIASED:
        result += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * h + column, result.to(y.dtype.element_ty), mask=inside)


@Quick
@triton.jit
def _backward(
    grad_y,
    x,
    weight,
    means,
    scales,
    grad_x,
    grad_weight,
    grad_bias,
    stride,
    rows,
    h,
    CENTERED: tl.constexpr,
    BIASED: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Every p-th row, and this program's share of the gradients of weight and bias."""
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < h
    gamma = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + SHIFT
    for_weight = tl.zeros((BLOCK,), dtype=tl.float32)
    for_bias = tl.zeros((BLOCK,), dtype=tl.float32)
    row = program.to(tl.int64)
    for _ in range(program, rows, tl.num_programs(0)):
        gradient = tl.load(grad_y + row * h + column, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scales + row)
        if CENTERED:
            value = tl.where(inside, value - tl.load(means + row), 0.0)
        normal = value * scale
        for_weight += gradient * normal
        if BIASED:
            for_bias += gradient
        scaled = gradient * gamma
        result = scaled - normal * (tl.sum(scaled * normal, 0) / h)
        if CENTERED:
            result -= tl.sum(scaled, 0) / h
        place = grad_x + row * h + column
        tl.store(place, (result * scale).to(grad_x.dtype.element_ty), mask=inside)
        row += tl.num_programs(0)
    tl.store(grad_weight + program * h + column, for_weight, mask=inside)
    if BIASED:
        tl.store(grad_bias + program * h + column, for_bias, mask=inside)


@lru_cache(maxsize=64)
def _programs(device: torch.device, block: int) -> int:
    """Programs of the backward pass: enough warps to keep each multiprocessor loading."""
    if device.type != "cuda":
        return 4
    each = max(2, min(8, WIDEST // block))
    return each * torch.cuda.get_device_properties(device).multi_processor_count


class _Norm(torch.autograd.Function):
    """y [..., h] of x [..., h]; RMSNorm when not centered."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        eps: float,
        shift: float,
        centered: bool,
    ) -> torch.Tensor:
        h = x.shape[-1]
        rows = x.reshape(-1, h)
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        count = rows.shape[0]
        y = torch.empty(count, h, dtype=x.dtype, device=x.device)
        scales = torch.empty(count, dtype=torch.float32, device=x.device)
        means = torch.empty_like(scales) if centered else scales
        block = power_of_two(h)
        if count:
            _forward[(count,)](
                rows,
                weight,
                weight if bias is None else bias,
                y,
                means,
                scales,
                rows.stride(0),
                h,
                eps,
                CENTERED=centered,
                BIASED=bias is not None,
                SHIFT=shift,
                BLOCK=block,
                num_warps=warps(block),
            )
        ctx.save_for_backward(rows, weight, means, scales)
        ctx.bias = bias is not None
        ctx.shift, ctx.centered, ctx.shape = shift, centered, x.shape
        return y.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, weight, means, scales = ctx.saved_tensors
        count, h = rows.shape
        grad_y = gradients[0].reshape(-1, h).contiguous()
        grad_x = torch.empty(count, h, dtype=rows.dtype, device=rows.device)
        block = power_of_two(h)
        programs = max(1, min(count, _programs(rows.device, block)))
        shares = torch.empty(
            2 if ctx.bias else 1, programs, h, dtype=torch.float32, device=rows.device
        )
        _backward[(programs,)](
            grad_y,
            rows,
            weight,
            means,
            scales,
            grad_x,
            shares[0],
            shares[-1],
            rows.stride(0),
            count,
            h,
            CENTERED=ctx.centered,
            BIASED=ctx.bias,
            SHIFT=ctx.shift,
            BLOCK=block,
            num_warps=warps(block),
        )
        sums = shares.sum(1).to(weight.dtype)
        grad_bias = sums[1] if ctx.bias else None
        return grad_x.view(ctx.shape), sums[0], grad_bias, None, None, None


def layer_norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    eps: float,
    zero_centered_gamma: bool = False,
) -> torch.Tensor:
    """The contract ``layer_norm``."""
    shift = 1.0 if zero_centered_gamma else 0.0
    output: torch.Tensor = _Norm.apply(input, weight, bias, eps, shift, True)
    return output


def rms_norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
    zero_centered_gamma: bool = False,
) -> torch.Tensor:
    """The contract ``rms_norm``."""
    shift = 1.0 if zero_centered_gamma else 0.0
    output: torch.Tensor = _Norm.apply(input, weight, None, eps, shift, False)
    return output
