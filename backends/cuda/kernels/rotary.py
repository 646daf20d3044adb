"""Rotary position embedding in one pass.

Legend: s sequence, b batch, n heads, d head size, r rotated size.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.kernels._choice import not_for_triton
from accel_bridge.backends.cuda.kernels._launch import Quick, blocks, power_of_two, warps

#: Pairs of numbers that a program holds.
_PAIRS = 2048


@Quick
@triton.jit
def _rotate(
    x,
    cos,
    sin,
    y,
    batch,
    heads,
    d,
    half,
    stride_s,
    stride_b,
    stride_n,
    angle_s,
    angle_b,
    INTERLEAVED: tl.constexpr,
    BACKWARD: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    """Some heads of one token: rotates each pair (x1, x2) by its angle; backward, rotates back."""
    token = tl.program_id(0).to(tl.int64)
    step = token // batch
    member = token % batch
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    pair = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (pair < half)
    if INTERLEAVED:
        one = 2 * pair
        two = one + 1
    else:
        one = pair
        two = pair + half
    source = x + step * stride_s + member * stride_b + head * stride_n
    target = y + (token * heads + head) * d
    angle = step * angle_s + member * angle_b
    real = pair < half
    cos1 = tl.load(cos + angle + one, mask=real, other=0.0).to(tl.float32)
    cos2 = tl.load(cos + angle + two, mask=real, other=0.0).to(tl.float32)
    sin1 = tl.load(sin + angle + one, mask=real, other=0.0).to(tl.float32)
    sin2 = tl.load(sin + angle + two, mask=real, other=0.0).to(tl.float32)
    x1 = tl.load(source + one, mask=inside, other=0.0).to(tl.float32)
    x2 = tl.load(source + two, mask=inside, other=0.0).to(tl.float32)
    if BACKWARD:
        y1 = x1 * cos1 + x2 * sin2
        y2 = x2 * cos2 - x1 * sin1
    else:
        y1 = x1 * cos1 - x2 * sin1
        y2 = x2 * cos2 + x1 * sin2
    tl.store(target + one, y1.to(y.dtype.element_ty), mask=inside)
    tl.store(target + two, y2.to(y.dtype.element_ty), mask=inside)
    if REST > 0:
        column = 2 * half + tl.arange(0, REST)[None, :]
        kept = (head < heads) & (column < d)
        tl.store(target + column, tl.load(source + column, mask=kept, other=0.0), mask=kept)


def _launch(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool, backward: bool
) -> torch.Tensor:
    """x [s, b, n, d] rotated; the result is contiguous."""
    if x.stride(-1) != 1:
        x = x.contiguous()
    s, b, n, d = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    size = cos.shape[-1]
    half = power_of_two(size // 2)
    heads = max(1, min(power_of_two(n), _PAIRS // half))
    if x.numel():
        _rotate[(s * b, blocks(n, heads))](
            x,
            cos,
            sin,
            y,
            b,
            n,
            d,
            size // 2,
            *x.stride()[:3],
            cos.stride(0) if cos.shape[0] > 1 else 0,
            cos.stride(1) if cos.shape[1] > 1 else 0,
            INTERLEAVED=interleaved,
            BACKWARD=backward,
            HEADS=heads,
            HALF=half,
            REST=power_of_two(d - size) if d > size else 0,
            num_warps=max(1, min(8, warps(2 * heads * half))),
        )
    return y


class _Rotary(torch.autograd.Function):
    """y [s, b, n, d] of x [s, b, n, d]."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
    ) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        return _launch(x, cos, sin, interleaved, backward=False)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _launch(gradients[0], cos, sin, ctx.interleaved, backward=True), None, None, None


def rotary(
    input: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = False,
) -> torch.Tensor:
    """The contract ``rotary`` for input [s, b, n, d] and cos, sin [s or 1, b or 1, 1, r].

    cos and sin are used as given; GEMMs and sums are float32.
    """
    if cos.stride() != sin.stride() or cos.stride(-1) != 1:
        cos, sin = cos.contiguous(), sin.contiguous()
    output: torch.Tensor = _Rotary.apply(input, cos, sin, interleaved)
    return output


def supports(input: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **_: object) -> str | None:
    """Where :func:`rotary` applies."""
    if input.dim() != 4 or cos.dim() != 4 or cos.shape != sin.shape:
        return f"angles of shape {list(cos.shape)} for an input of {input.dim()} dimensions"
    if cos.shape[2] != 1 or any(
        size not in (1, whole) for size, whole in zip(cos.shape[:2], input.shape, strict=False)
    ):
        return f"angles of shape {list(cos.shape)} differ between heads"
    if cos.shape[-1] % 2 or cos.shape[-1] > input.shape[-1]:
        return None if input.dtype == torch.float64 else "a rotated size that does not fit"
    if cos.requires_grad or sin.requires_grad:
        return "angles that are learned"
    return not_for_triton(input, cos, sin)
