"""The causal convolution, forward and backward in one pass each.

Legend: b batch, d channels, s sequence length, w width; a program holds a tile of positions and
channels of one batch element, so that sequences may have either of them side by side in memory.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.kernels._choice import not_for_triton
from accel_bridge.backends.cuda.kernels._launch import Quick, blocks
from accel_bridge.kernels import check_convolution

#: Positions and channels that a program holds.
_POSITIONS: Final = 64
_CHANNELS: Final = 32
#: Widest filter: the backward pass loads its square of tiles.
_WIDEST: Final = 8


@triton.jit
def _taps(
    x,
    ids,
    weight,
    bias,
    position,
    channel,
    s,
    d,
    stride_s,
    stride_d,
    W: tl.constexpr,
    BIASED: tl.constexpr,
    PACKED: tl.constexpr,
):
    """The filtered tile at ``position``, before the activation."""
    total = tl.zeros((position.shape[0], channel.shape[0]), dtype=tl.float32)
    wide = channel < d
    if PACKED:
        own = tl.load(ids + position, mask=position < s, other=-1)
    for tap in tl.static_range(W):
        source = position - (W - 1 - tap)
        seen = (source >= 0) & (source < s)
        if PACKED:
            seen = seen & (tl.load(ids + source, mask=seen, other=-2) == own)
        part = tl.load(
            x + source[:, None] * stride_s + channel[None, :] * stride_d,
            mask=seen[:, None] & wide[None, :],
            other=0.0,
        ).to(tl.float32)
        factor = tl.load(weight + channel * W + tap, mask=wide, other=0.0).to(tl.float32)
        total += part * factor[None, :]
    if BIASED:
        total += tl.load(bias + channel, mask=wide, other=0.0).to(tl.float32)[None, :]
    return total


@Quick
@triton.jit
def _forward(
    x,
    weight,
    bias,
    ids,
    y,
    s,
    d,
    x_b,
    x_d,
    x_s,
    y_b,
    y_d,
    y_s,
    W: tl.constexpr,
    BIASED: tl.constexpr,
    PACKED: tl.constexpr,
    SILU: tl.constexpr,
    POSITIONS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """One tile of the output."""
    item = tl.program_id(2).to(tl.int64)
    position = tl.program_id(0).to(tl.int64) * POSITIONS + tl.arange(0, POSITIONS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    ids += item * s
    total = _taps(
        x + item * x_b, ids, weight, bias, position, channel, s, d, x_s, x_d, W, BIASED, PACKED
    )
    if SILU:
        total = total * tl.sigmoid(total)
    if PACKED:
        real = tl.load(ids + position, mask=position < s, other=-1) >= 0
        total = tl.where(real[:, None], total, 0.0)
    tl.store(
        y + item * y_b + position[:, None] * y_s + channel[None, :] * y_d,
        total.to(y.dtype.element_ty),
        mask=(position < s)[:, None] & (channel < d)[None, :],
    )


@Quick
@triton.jit
def _backward(
    grad_y,
    x,
    weight,
    bias,
    ids,
    grad_x,
    grad_weight,
    grad_bias,
    s,
    d,
    g_b,
    g_d,
    g_s,
    x_b,
    x_d,
    x_s,
    r_b,
    r_d,
    r_s,
    W: tl.constexpr,
    BIASED: tl.constexpr,
    PACKED: tl.constexpr,
    SILU: tl.constexpr,
    POSITIONS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """One tile of the input's gradient, and its share of the weight's and the bias's."""
    item = tl.program_id(2).to(tl.int64)
    position = tl.program_id(0).to(tl.int64) * POSITIONS + tl.arange(0, POSITIONS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    wide = channel < d
    ids += item * s
    x += item * x_b
    share = (item * tl.num_programs(0) + tl.program_id(0)) * d
    if PACKED:
        own = tl.load(ids + position, mask=position < s, other=-1)
    result = tl.zeros((POSITIONS, CHANNELS), dtype=tl.float32)
    # Not unrolled: it would be W times as much to compile.
    for ahead in range(W):
        # The gradient of what the position `ahead` of this one filters to.
        target = position + ahead
        seen = target < s
        if PACKED:
            seen = seen & (own >= 0) & (tl.load(ids + target, mask=seen, other=-2) == own)
        inside = seen[:, None] & wide[None, :]
        gradient = tl.load(
            grad_y + item * g_b + target[:, None] * g_s + channel[None, :] * g_d,
            mask=inside,
            other=0.0,
        ).to(tl.float32)
        if SILU:
            total = _taps(x, ids, weight, bias, target, channel, s, d, x_s, x_d, W, BIASED, PACKED)
            sigmoid = tl.sigmoid(total)
            gradient = gradient * (sigmoid + total * sigmoid * (1.0 - sigmoid))
        factor = tl.load(weight + channel * W + (W - 1 - ahead), mask=wide, other=0.0)
        result += gradient * factor.to(tl.float32)[None, :]
        if ahead == 0:
            if BIASED:
                tl.store(grad_bias + share + channel, tl.sum(gradient, 0), mask=wide)
            for tap in tl.static_range(W):
                source = position - (W - 1 - tap)
                used = (source >= 0) & (source < s)
                if PACKED:
                    used = used & (tl.load(ids + source, mask=used, other=-2) == own)
                part = tl.load(
                    x + source[:, None] * x_s + channel[None, :] * x_d,
                    mask=used[:, None] & wide[None, :],
                    other=0.0,
                ).to(tl.float32)
                place = grad_weight + (share + channel) * W + tap
                tl.store(place, tl.sum(gradient * part, 0), mask=wide)
    tl.store(
        grad_x + item * r_b + position[:, None] * r_s + channel[None, :] * r_d,
        result.to(grad_x.dtype.element_ty),
        mask=(position < s)[:, None] & wide[None, :],
    )


class _Convolution(torch.autograd.Function):
    """y [b, d, s] of x [b, d, s], laid out alike."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        silu: bool,
        ids: torch.Tensor | None,
    ) -> torch.Tensor:
        b, d, s = x.shape
        weight = weight.contiguous()
        ids = None if ids is None else ids.contiguous()
        y = torch.empty_like(x)
        if x.numel():
            _forward[(blocks(s, _POSITIONS), blocks(d, _CHANNELS), b)](
                x,
                weight,
                weight if bias is None else bias,
                weight if ids is None else ids,
                y,
                s,
                d,
                *x.stride(),
                *y.stride(),
                W=weight.shape[1],
                BIASED=bias is not None,
                PACKED=ids is not None,
                SILU=silu,
                POSITIONS=_POSITIONS,
                CHANNELS=_CHANNELS,
                num_warps=8,
            )
        ctx.save_for_backward(x, weight, bias, ids)
        ctx.silu = silu
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, bias, ids = ctx.saved_tensors
        b, d, s = x.shape
        width, grad_y = weight.shape[1], gradients[0]
        grad_x = torch.empty_like(x)
        tiles = (blocks(s, _POSITIONS), blocks(d, _CHANNELS), b)
        # A share for every tile, summed afterwards: the same sum every time.
        rows = tiles[0] * b
        grad_weight = x.new_empty(rows, d, width, dtype=torch.float32)
        grad_bias = x.new_empty(rows if bias is not None else 0, d, dtype=torch.float32)
        if x.numel():
            _backward[tiles](
                grad_y,
                x,
                weight,
                weight if bias is None else bias,
                weight if ids is None else ids,
                grad_x,
                grad_weight,
                grad_bias,
                s,
                d,
                *grad_y.stride(),
                *x.stride(),
                *grad_x.stride(),
                W=width,
                BIASED=bias is not None,
                PACKED=ids is not None,
                SILU=ctx.silu,
                POSITIONS=_POSITIONS,
                CHANNELS=_CHANNELS,
                num_warps=8,
            )
        summed = None if bias is None else grad_bias.sum(0).to(bias.dtype)
        return grad_x, grad_weight.sum(0).to(weight.dtype), summed, None, None


def causal_convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    silu: bool = False,
    initial_state: torch.Tensor | None = None,
    sequence_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """The contract ``causal_convolution``."""
    check_convolution(input, weight, initial_state, sequence_ids)
    length = input.shape[-1]
    if initial_state is not None:
        input = torch.cat((initial_state.to(input.dtype), input), -1)
        if sequence_ids is not None:
            first = sequence_ids[:, :1].repeat(1, weight.shape[1] - 1)
            sequence_ids = torch.cat((first, sequence_ids), -1)
    output: torch.Tensor = _Convolution.apply(input, weight, bias, silu, sequence_ids)
    return output if initial_state is None else output[..., -length:]


def supports(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    initial_state: torch.Tensor | None = None,
    **_: object,
) -> str | None:
    """Where :func:`causal_convolution` applies."""
    if weight.shape[-1] > _WIDEST:
        return f"a filter of width {weight.shape[-1]}, above {_WIDEST}"
    return not_for_triton(input, weight, bias, initial_state)
