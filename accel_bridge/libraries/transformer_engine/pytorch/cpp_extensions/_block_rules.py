"""Which products of block-scaled FP8 tensors there are.

A program that works here shall work with the compiled library, too: what cuBLAS has no kernel for
is refused with the same error. Source: common/gemm/cublaslt_gemm.cu of Transformer Engine 2.13.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from ._enums import DType

#: What the size that is summed over, and the others, must be multiples of.
_INNER: Final = 16
_OUTER: Final = 8


def check_block_product(
    A: Any,
    B: Any,
    layout: str,
    dtype: torch.dtype,
    *,
    precise: bool,
    bias: bool,
    gelu: bool,
    grad: bool,
) -> None:
    """Nothing, if A or B is not scaled by blocks.

    :param dtype: of the result.
    :param bias: there is a bias, or its gradient is asked for.
    :raises RuntimeError: cuBLAS has no such product.
    """
    squares = [getattr(one, "_is_2D_scaled", None) for one in (A, B)]
    if None in squares:
        return
    if all(squares):
        raise RuntimeError("Only 1D by 1D, 1D by 2D, and 2D by 1D block scaling GEMM is supported")
    _check_sizes(A, B, layout, b_is_square=bool(squares[1]))
    if A._fp8_dtype == B._fp8_dtype == DType.kFloat8E5M2:
        raise _unsupported("both operands are E5M2")
    if not precise:
        raise _unsupported("the sums are not kept in float32 (use_split_accumulator)")
    if gelu and grad and not bias:
        if dtype != torch.bfloat16:
            raise RuntimeError(
                "cuBLAS: an unsupported value or parameter was passed to the function: the "
                f"derivative of GELU in {dtype} behind a product of block-scaled tensors"
            )
    elif gelu or (grad and bias):
        raise RuntimeError(
            "Epilogue requested outside of the available and tested cuBLAS functionality for "
            "float8 block scaled GEMM"
        )


def _unsupported(why: str) -> RuntimeError:
    return RuntimeError(f"CUBLAS_STATUS_NOT_SUPPORTED: block scaling GEMM, but {why}")


def _check_sizes(A: Any, B: Any, layout: str, b_is_square: bool) -> None:
    m, k = _sizes(A, summed_last=layout[0] == "T")
    n, _ = _sizes(B, summed_last=layout[1] == "N")
    place = None
    if k % _INNER:
        place = f"Leading dimension requirement ({_INNER})"
    elif m % _OUTER:
        place = f"Outer dimension requirement ({_OUTER}) on A"
    elif n % _OUTER and not b_is_square:
        place = f"Outer dimension requirement ({_OUTER}) on B"
    if place is not None:
        sizes = f"[{n}, {k}] by [{k}, {m}]"
        raise RuntimeError(f"{place} for block scaling GEMM. Caller must pad. Sizes: {sizes}.")


def _sizes(operand: Any, summed_last: bool) -> tuple[int, int]:
    """(rows, the size that is summed over)."""
    *rows, last = operand.size()
    count = 1
    for size in rows:
        count *= size
    return (count, last) if summed_last else (last, count)
