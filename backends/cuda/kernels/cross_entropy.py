"""Vocabulary-parallel cross-entropy in one pass forward and one backward.

Legend: r rows (tokens), v columns of this rank's slice of the vocabulary.

The forward pass reads the logits once, keeping a running maximum and a running sum of
exponentials (Milakov and Gimelshein 2018, arXiv:1805.02867), and stores three numbers a row. The
backward pass reads them once more and writes the gradient over them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl

from accel_bridge.backends.cuda.kernels._choice import not_for_triton
from accel_bridge.backends.cuda.kernels._launch import Quick, blocks, power_of_two, warps
from accel_bridge.kernels import group_size, smoothing_weight

#: Columns that a program holds at a time.
BLOCK = 2048


@Quick
@triton.jit
def statistics_kernel(
    logits,
    target,
    peaks,
    totals,
    predicted,
    sums,
    stride,
    columns,
    first,
    SMOOTHED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row: maximum, sum of exponentials relative to it, the target's logit, sum of logits."""
    row = tl.program_id(0).to(tl.int64)
    start_of_row = logits + row * stride
    peak = -float("inf")
    total = 0.0
    summed = 0.0
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        x = tl.load(start_of_row + column, mask=inside, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(peak, tl.max(x, 0))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(x - higher), 0)
        peak = higher
        if SMOOTHED:
            summed += tl.sum(tl.where(inside, x, 0.0), 0)
    index = tl.load(target + row) - first
    here = (index >= 0) & (index < columns)
    hit = tl.load(start_of_row + index, mask=here, other=0.0).to(tl.float32)
    tl.store(peaks + row, peak)
    tl.store(totals + row, total)
    tl.store(predicted + row, hit)
    if SMOOTHED:
        tl.store(sums + row, summed)


@Quick
@triton.jit
def gradient_kernel(
    logits,
    gradient,
    target,
    peaks,
    totals,
    grad_loss,
    stride,
    columns,
    first,
    weight,
    share,
    BLOCK: tl.constexpr,
):
    """Part of one row: ``g * (softmax - (1 - weight) * one_hot - share)``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    index = tl.load(target + row) - first
    scale = tl.load(grad_loss + row).to(tl.float32)
    peak = tl.load(peaks + row)
    total = tl.load(totals + row)
    x = tl.load(logits + row * stride + column, mask=inside, other=-float("inf")).to(tl.float32)
    change = tl.exp(x - peak) / total - share
    change = tl.where(column == index, change - (1.0 - weight), change) * scale
    place = gradient + row * columns + column
    tl.store(place, change.to(gradient.dtype.element_ty), mask=inside)


class _CrossEntropy(torch.autograd.Function):
    """Loss [...] of logits [..., v]; see :func:`cross_entropy`."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        target: torch.Tensor,
        group: dist.ProcessGroup | None,
        smoothing: float,
        overwrite: bool,
    ) -> torch.Tensor:
        columns = logits.shape[-1]
        rows = logits.reshape(-1, columns)
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        index = target.reshape(-1).contiguous()
        ranks = group_size(group)
        first = columns * group.rank() if group is not None else 0
        weight = smoothing_weight(smoothing, columns * ranks)
        # One tensor, so that one message carries everything that is summed over ranks.
        numbers = torch.empty(4, rows.shape[0], dtype=torch.float32, device=rows.device)
        peak, total, predicted, summed = numbers.unbind()
        block = min(BLOCK, power_of_two(columns))
        if rows.shape[0]:
            statistics_kernel[(rows.shape[0],)](
                rows,
                index,
                peak,
                total,
                predicted,
                summed,
                rows.stride(0),
                columns,
                first,
                SMOOTHED=bool(weight),
                BLOCK=block,
                num_warps=warps(block),
            )
        if ranks > 1:
            local = peak.clone()
            dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)
            total.mul_(torch.exp(local - peak))
            dist.all_reduce(numbers[1 : 4 if weight else 3], group=group)
        # The peak is subtracted before anything is rounded: large logits cancel exactly.
        normalizer = total.log()
        loss = normalizer - (predicted - peak)
        if weight:
            mean_log_probability = summed / (columns * ranks) - peak - normalizer
            loss = (1.0 - weight) * loss - weight * mean_log_probability
        ctx.save_for_backward(logits, index, peak, total)
        ctx.first, ctx.weight, ctx.share = first, weight, weight / (columns * ranks)
        ctx.overwrite = overwrite
        return loss.view(target.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        logits, index, peak, total = ctx.saved_tensors
        columns = logits.shape[-1]
        rows = logits.reshape(-1, columns)
        grad_loss = gradients[0].reshape(-1).contiguous()
        gradient = logits.detach() if ctx.overwrite else torch.empty_like(rows)
        block = min(BLOCK, power_of_two(columns))
        if rows.shape[0]:
            gradient_kernel[(rows.shape[0], blocks(columns, block))](
                rows,
                gradient,
                index,
                peak,
                total,
                grad_loss,
                rows.stride(0),
                columns,
                ctx.first,
                ctx.weight,
                ctx.share,
                BLOCK=block,
                num_warps=warps(block),
            )
        if ctx.overwrite:
            # Other users of the logits then get autograd's error instead of reading gradients.
            torch.autograd.graph.increment_version(logits)
        return gradient.view(logits.shape), None, None, None, None


def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """The contract ``cross_entropy``.

    The backward pass writes the gradient over logits that an operation produced (never over a
    leaf): with a vocabulary of 50 thousand they are the largest tensor of a step.
    """
    overwrite = not logits.is_leaf and logits.is_contiguous()
    loss: torch.Tensor = _CrossEntropy.apply(logits, target, group, label_smoothing, overwrite)
    return loss


def supports(logits: torch.Tensor, *_: object, **__: object) -> str | None:
    """Where :func:`cross_entropy` applies."""
    return not_for_triton(logits)
