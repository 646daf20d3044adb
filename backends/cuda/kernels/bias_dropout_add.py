"""Bias, dropout and residual in one pass; the dropout mask is regenerated, not stored.

Legend: ... leading dimensions, h hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.kernels._choice import LARGE, not_for_triton
from accel_bridge.backends.cuda.kernels._launch import Quick, blocks, draw_seed
from accel_bridge.kernels import BIAS_DROPOUT_ADD

#: A program holds four such blocks: the generator gives four numbers at a time.
_BLOCK = 512


@triton.jit
def _quarter(
    x,
    bias,
    residual,
    y,
    place,
    size,
    h,
    number,
    dropout,
    scale,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
):
    """One block: ``residual + kept * scale * (x + bias)``."""
    inside = place < size
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        value += tl.load(bias + place % h, mask=inside, other=0.0).to(tl.float32)
    value = tl.where(number >= dropout, value * scale, 0.0)
    if ADDED:
        value += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + place, value.to(y.dtype.element_ty), mask=inside)


@Quick
@triton.jit(do_not_specialize=["seed"])
def _apply(
    x,
    bias,
    residual,
    y,
    size,
    h,
    seed,
    dropout,
    scale,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    DROPPED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Four blocks of elements; element i of block k gets the k-th number of draw i."""
    program = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    place = program * 4 * BLOCK + lane
    if DROPPED:
        a, b, c, d = tl.rand4x(seed, (program * BLOCK + lane).to(tl.int32))
    else:
        a = tl.zeros((BLOCK,), dtype=tl.float32) + 1.0
        b, c, d = a, a, a
    _quarter(x, bias, residual, y, place, size, h, a, dropout, scale, BIASED, ADDED)
    _quarter(x, bias, residual, y, place + BLOCK, size, h, b, dropout, scale, BIASED, ADDED)
    _quarter(x, bias, residual, y, place + 2 * BLOCK, size, h, c, dropout, scale, BIASED, ADDED)
    _quarter(x, bias, residual, y, place + 3 * BLOCK, size, h, d, dropout, scale, BIASED, ADDED)


def _launch(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    dtype: torch.dtype,
    seed: int,
    dropout: float,
) -> torch.Tensor:
    """``residual + dropout(x + bias)`` in ``dtype``; without a residual only the dropout."""
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    if x.numel():
        _apply[(blocks(x.numel(), 4 * _BLOCK),)](
            x,
            x if bias is None else bias,
            x if residual is None else residual,
            y,
            x.numel(),
            x.shape[-1],
            seed,
            dropout,
            1.0 / (1.0 - dropout),
            BIASED=bias is not None,
            ADDED=residual is not None,
            DROPPED=dropout > 0.0,
            BLOCK=_BLOCK,
            num_warps=4,
        )
    return y


class _BiasDropoutAdd(torch.autograd.Function):
    """y [..., h] in the residual's dtype."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor,
        dropout: float,
    ) -> torch.Tensor:
        ctx.seed = draw_seed(x.device) if dropout > 0.0 else 0
        ctx.dropout, ctx.dtype = dropout, x.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return _launch(
            x.contiguous(), bias, residual.contiguous(), residual.dtype, ctx.seed, dropout
        )

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_y = gradients[0]
        grad_x = grad_y.to(ctx.dtype)
        if ctx.dropout > 0.0:
            grad_x = _launch(grad_y.contiguous(), None, None, ctx.dtype, ctx.seed, ctx.dropout)
        grad_bias = None
        if ctx.bias_dtype is not None:
            grad_bias = grad_x.flatten(0, -2).sum(0).to(ctx.bias_dtype)
        return grad_x, grad_bias, grad_y, None


def bias_dropout_add(
    input: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    *,
    dropout: float,
    training: bool,
) -> torch.Tensor:
    """The contract ``bias_dropout_add`` for a bias [h]; torch's operators serve small inputs."""
    if input.numel() < LARGE:
        plain = BIAS_DROPOUT_ADD.reference
        return plain(input, bias, residual, dropout=dropout, training=training)
    rate = dropout if training else 0.0
    if bias is None and rate == 0.0:
        return residual + input.to(residual.dtype)
    output: torch.Tensor = _BiasDropoutAdd.apply(input, bias, residual, rate)
    return output


def supports(
    input: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    *,
    dropout: float,
    training: bool,
) -> str | None:
    """Where :func:`bias_dropout_add` applies."""
    if bias is not None and bias.dim() != 1:
        return f"a bias of shape {list(bias.shape)}"
    if input.shape != residual.shape:
        return f"an input of {list(input.shape)} with a residual of {list(residual.shape)}"
    if dropout >= 1.0:
        return "a dropout probability of 1"
    if training and dropout > 0.0 and input.is_cuda and torch.cuda.is_current_stream_capturing():
        return "inside a CUDA graph, where only torch's own dropout draws anew in each replay"
    return not_for_triton(input, bias, residual)
