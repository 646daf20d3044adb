"""The weight gradients of several experts, added to float32 sums in one launch.

Legend: t rows sorted by expert, e experts, k input size, m output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.kernels._choice import on_device
from accel_bridge.backends.cuda.kernels._launch import Quick, blocks

#: Rows and columns of a tile of the sums, rows of experts that are multiplied at once, and tiles
#: that share operands in the cache.
_TILE = {"TILE_M": 128, "TILE_K": 256, "ROWS": 64, "GROUP": 8}


@Quick
@triton.jit
def _add_products(
    gradient,
    input,
    sums,
    places,
    ends,
    m,
    k,
    across,
    tiles,
    TILE_M: tl.constexpr,
    TILE_K: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One tile of one expert's sums [m, k]."""
    expert, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    # Neighbours in time read the same rows of the operands.
    width = GROUP * across
    first = tile // width * GROUP
    high = tl.minimum(tiles // across - first, GROUP)
    row = (first + tile % width % high) * TILE_M + tl.arange(0, TILE_M)
    column = tile % width // high * TILE_K + tl.arange(0, TILE_K)
    start = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    end = tl.load(ends + expert)
    step = tl.arange(0, ROWS)
    left = gradient + (start + step).to(tl.int64)[:, None] * m + row[None, :]
    right = input + (start + step).to(tl.int64)[:, None] * k + column[None, :]
    total = tl.zeros((TILE_M, TILE_K), tl.float32)
    for place in range(start, end, ROWS):
        inside = (place + step < end)[:, None]
        a = tl.load(left, mask=inside & (row < m)[None, :], other=0.0)
        b = tl.load(right, mask=inside & (column < k)[None, :], other=0.0)
        total += tl.dot(tl.trans(a), b)
        left += ROWS * m
        right += ROWS * k
    target = sums + tl.multiple_of(tl.load(places + expert), 4)
    target += row.to(tl.int64)[:, None] * k + column[None, :]
    inside = (row < m)[:, None] & (column < k)[None, :]
    tl.store(target, tl.load(target, mask=inside, other=0.0) + total, mask=inside)


def grouped_weight_gradient(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    splits: Sequence[int],
    main_grad: torch.Tensor,
    places: Sequence[int],
) -> None:
    """The contract ``grouped_weight_gradient`` for a float32 main_grad."""
    k, m = input.shape[1], grad_output.shape[1]
    across = blocks(k, _TILE["TILE_K"])
    tiles = across * blocks(m, _TILE["TILE_M"])
    if tiles and splits:
        _add_products[(len(splits) * tiles,)](
            grad_output.contiguous(),
            input.contiguous(),
            main_grad,
            on_device(tuple(places), torch.int64, input.device),
            on_device(tuple(accumulate(splits)), torch.int32, input.device),
            m,
            k,
            across,
            tiles,
            **_TILE,
            num_warps=8,
            num_stages=3,
        )


def supports(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    splits: Sequence[int],
    main_grad: torch.Tensor,
    places: Sequence[int],
) -> str | None:
    """Where :func:`grouped_weight_gradient` applies."""
    if input.dtype != grad_output.dtype or input.dtype not in (torch.bfloat16, torch.float16):
        return f"Triton's products are for half precision, not {input.dtype}"
    if main_grad.dtype != torch.float32:
        return f"sums in {main_grad.dtype}"
    if any(place % 4 for place in places):
        return "sums that do not begin at multiples of 16 bytes"
    return None
