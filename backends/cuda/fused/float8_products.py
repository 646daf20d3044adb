"""FP8 products with a factor for each block.

Legend: m rows, n columns, k the size that a product sums over.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.fused._float8 import BLOCK
from accel_bridge.backends.cuda.fused._launch import blocks
from accel_bridge.backends.cuda.fused._quick import Quick


@Quick
@triton.jit(
    do_not_specialize=[
        "m",
        "a_factor_row",
        "a_factor_column",
        "b_factor_row",
        "b_factor_column",
    ]
)
def _product(
    a,
    b,
    a_factors,
    b_factors,
    bias,
    output,
    m,
    n,
    k,
    a_factor_row,
    a_factor_column,
    b_factor_row,
    b_factor_column,
    A_ROWS: tl.constexpr,
    B_ROWS: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One tile: each block of k is summed by itself and scaled in float32."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    offset = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for block in range(tl.cdiv(k, BLOCK_K)):
        place = block * BLOCK_K + offset
        left = tl.load(
            a + row[:, None] * k + place[None, :],
            mask=(row < m)[:, None] & (place < k)[None, :],
            other=0.0,
        )
        right = tl.load(
            b + column[None, :] * k + place[:, None],
            mask=(column < n)[None, :] & (place < k)[:, None],
            other=0.0,
        )
        a_place = (row // A_ROWS) * a_factor_row + block * a_factor_column
        b_place = (column // B_ROWS) * b_factor_row + block * b_factor_column
        a_factor = tl.load(a_factors + a_place, mask=row < m, other=0.0)
        b_factor = tl.load(b_factors + b_place, mask=column < n, other=0.0)
        total += tl.dot(left, right) * a_factor[:, None] * b_factor[None, :]
    if BIAS:
        total += tl.load(bias + column, mask=column < n, other=0.0).to(tl.float32)[None, :]
    tl.store(
        output + row[:, None] * n + column[None, :],
        total.to(output.dtype.element_ty),
        mask=(row < m)[:, None] & (column < n)[None, :],
    )


def _spread(factors: torch.Tensor, rows: int) -> tuple[int, int, int]:
    """(rows that share a factor, strides); one factor for all has strides of 0."""
    if factors.numel() == 1:
        return 1, 0, 0
    return (1 if factors.shape[0] == rows else BLOCK), factors.stride(0), factors.stride(1)


def scaled_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    a_factors: torch.Tensor,
    b_factors: torch.Tensor,
    *,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    precise: bool = True,
) -> torch.Tensor:
    """The contract ``scaled_matmul``."""
    (m, k), n = a.shape, b.shape[0]
    output = torch.empty(m, n, dtype=dtype, device=a.device)
    a_rows, *a_strides = _spread(a_factors, m)
    b_rows, *b_strides = _spread(b_factors, n)
    if output.numel():
        _product[(blocks(m, 128), blocks(n, 128))](
            a.contiguous(),
            b.contiguous(),
            a_factors,
            b_factors,
            a_factors if bias is None else bias,
            output,
            m,
            n,
            k,
            *a_strides,
            *b_strides,
            A_ROWS=a_rows,
            B_ROWS=b_rows,
            BIAS=bias is not None,
            BLOCK_M=128,
            BLOCK_N=128,
            BLOCK_K=BLOCK,
            num_warps=8,
            num_stages=3,
        )
    return output
