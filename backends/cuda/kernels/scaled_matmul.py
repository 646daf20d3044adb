"""FP8 GEMMs with a factor for each block.

Legend: m rows, n columns, k the size that a GEMM sums over.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.kernels._float8 import BLOCK
from accel_bridge.backends.cuda.kernels._launch import Quick, blocks, gemm
from accel_bridge.backends.cuda.kernels.float8 import without_float8

#: Bytes whose multiples scale_inv of cuBLAS's GEMMs begin at.
_ALIGNMENT: Final = 16


@Quick
@triton.jit(
    do_not_specialize=[
        "m",
        "a_scale_row",
        "a_scale_column",
        "b_scale_row",
        "b_scale_column",
    ],
    launch_metadata=gemm("a", "n", 8),
)
def _gemm(
    a,
    b,
    a_scale_inv,
    b_scale_inv,
    bias,
    output,
    m,
    n,
    k,
    a_scale_row,
    a_scale_column,
    b_scale_row,
    b_scale_column,
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
        a_place = (row // A_ROWS) * a_scale_row + block * a_scale_column
        b_place = (column // B_ROWS) * b_scale_row + block * b_scale_column
        a_factor = tl.load(a_scale_inv + a_place, mask=row < m, other=0.0)
        b_factor = tl.load(b_scale_inv + b_place, mask=column < n, other=0.0)
        total += tl.dot(left, right) * a_factor[:, None] * b_factor[None, :]
    if BIAS:
        total += tl.load(bias + column, mask=column < n, other=0.0).to(tl.float32)[None, :]
    tl.store(
        output + row[:, None] * n + column[None, :],
        total.to(output.dtype.element_ty),
        mask=(row < m)[:, None] & (column < n)[None, :],
    )


def _spread(scale_inv: torch.Tensor, rows: int) -> tuple[int, int, int]:
    """(rows that share a factor, strides); one factor for all has strides of 0."""
    if scale_inv.numel() == 1:
        return 1, 0, 0
    return (1 if scale_inv.shape[0] == rows else BLOCK), scale_inv.stride(0), scale_inv.stride(1)


def by_triton(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b_scale_inv: torch.Tensor,
    *,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    precise: bool = True,
) -> torch.Tensor:
    """The contract ``scaled_matmul`` for any shape; always as precise as it can."""
    (m, k), n = a.shape, b.shape[0]
    output = torch.empty(m, n, dtype=dtype, device=a.device)
    a_rows, *a_strides = _spread(a_scale_inv, m)
    b_rows, *b_strides = _spread(b_scale_inv, n)
    if output.numel():
        _gemm[(blocks(m, 128), blocks(n, 128))](
            a.contiguous(),
            b.contiguous(),
            a_scale_inv,
            b_scale_inv,
            a_scale_inv if bias is None else bias,
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


@lru_cache(maxsize=8)
def _torch_takes_blocks(device: torch.device) -> bool:
    """Whether this torch multiplies FP8 tensors with block scale_inv here; tried once."""
    numbers = torch.zeros(BLOCK, 4 * BLOCK, dtype=torch.float8_e4m3fn, device=device)
    rows = torch.ones(4, BLOCK, device=device).t()
    square = torch.ones(1, 4, device=device)
    try:
        for b_scale_inv in (rows, square):
            torch._scaled_mm(numbers, numbers.t(), rows, b_scale_inv.t(), out_dtype=torch.bfloat16)
    except (RuntimeError, ValueError, NotImplementedError):
        return False
    return True


def _aligned(scale_inv: torch.Tensor) -> torch.Tensor:
    """Where cuBLAS reads them: from a multiple of 16 bytes on. One of several may lie elsewhere."""
    return scale_inv.clone() if scale_inv.data_ptr() % _ALIGNMENT else scale_inv


def _as_torch_wants(scale_inv: torch.Tensor, rows: int) -> torch.Tensor:
    """Factors of rows lie by columns, those of squares by rows."""
    if scale_inv.shape[0] == rows:
        return _aligned(scale_inv.t().contiguous()).t()
    return _aligned(scale_inv.contiguous())


def scaled_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b_scale_inv: torch.Tensor,
    *,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    precise: bool = True,
) -> torch.Tensor:
    """The contract ``scaled_matmul``: torch's where its rules allow it, else Triton's."""
    if not _for_torch(a, b, a_scale_inv, b_scale_inv):
        return by_triton(a, b, a_scale_inv, b_scale_inv, dtype=dtype, bias=bias)
    by_block = a_scale_inv.numel() > 1
    if by_block:
        a_scale_inv = _as_torch_wants(a_scale_inv, a.shape[0])
        b_scale_inv = _as_torch_wants(b_scale_inv, b.shape[0]).t()
    else:
        a_scale_inv, b_scale_inv = _aligned(a_scale_inv), _aligned(b_scale_inv)
    # cuBLAS adds a bias of the result's own half precision.
    inside = bias is not None and bias.dtype == dtype and dtype != torch.float32
    output = torch._scaled_mm(
        a,
        b.t(),
        a_scale_inv,
        b_scale_inv,
        bias=bias if inside else None,
        out_dtype=dtype,
        use_fast_accum=not precise and not by_block,
    )
    return output if bias is None or inside else output.add_(bias)


def _for_torch(
    a: torch.Tensor, b: torch.Tensor, a_scale_inv: torch.Tensor, b_scale_inv: torch.Tensor
) -> bool:
    """Whether torch's rules allow a GEMM."""
    if not a.numel() or a.shape[1] % 16 or b.shape[0] % 16:
        return False
    if a_scale_inv.numel() == b_scale_inv.numel() == 1:
        return True
    # How 128 x 128 scale_inv are padded differs between versions unless k is a multiple of 512.
    if a.shape[1] % (4 * BLOCK) or a_scale_inv.numel() == 1 or b_scale_inv.numel() == 1:
        return False
    if a.shape[0] % 4 or b.shape[0] % BLOCK or a_scale_inv.shape[0] == b_scale_inv.shape[0] == 1:
        return False
    return _torch_takes_blocks(a.device)


def supports(
    a: torch.Tensor, b: torch.Tensor, *_: object, dtype: torch.dtype, **__: object
) -> str | None:
    """Where :func:`scaled_matmul` applies."""
    if a.dtype == b.dtype == torch.float8_e5m2:
        return "both operands are E5M2"
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"a result in {dtype}"
    return without_float8(a.device)
