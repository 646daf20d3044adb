"""GEMMs of quantized tensors, on the contract ``scaled_matmul``."""

from __future__ import annotations

from typing import Any, Final

import torch

from accel_bridge.kernels.active import kernel
from accel_bridge.kernels.float8 import SCALED_MATMUL, float8_dequantize
from accel_bridge.libraries.transformer_engine_torch._tensors import Operand, is_quantized, operand
from accel_bridge.libraries.transformer_engine_torch.enums import TORCH_DTYPE

#: What the size that is summed over, and the others, must be multiples of with block scaling.
_INNER: Final = 16
_OUTER: Final = 8


def scaled_gemm(
    a: Any,
    transposed_a: bool,
    b: Any,
    transposed_b: bool,
    dtype: torch.dtype,
    *,
    bias: torch.Tensor | None = None,
    precise: bool = True,
) -> torch.Tensor:
    """``op(b) @ op(a)`` of quantized tensors, in the layouts of ``generic_gemm``.

    :param a: [m, k] if ``transposed_a``, else [k, m].
    :param b: [.., k] if not ``transposed_b``, else [k.., n].
    :param dtype: of the result.
    :param bias: [m], added before the result is rounded.
    :param precise: sum in float32 (``use_split_accumulator``).
    :returns: [n, m].
    :raises RuntimeError: an operand lacks the data that the layout reads, or only one is quantized.
    """
    if not (is_quantized(a) and is_quantized(b)):
        kinds = f"{type(a).__name__} and {type(b).__name__}"
        raise RuntimeError(f"a GEMM takes two quantized operands or none, not {kinds}")
    left = operand(b, columnwise=transposed_b)
    right = operand(a, columnwise=not transposed_a)
    return product(left, right, dtype, bias=bias, precise=precise)


def product(
    left: Operand,
    right: Operand,
    dtype: torch.dtype,
    *,
    bias: torch.Tensor | None = None,
    precise: bool = True,
) -> torch.Tensor:
    """``left @ right^T + bias``: [n, k] by [m, k] -> [n, m] in ``dtype``."""
    if left.scale_inv.dtype == torch.float8_e8m0fnu:
        # No backend multiplies MX formats: emulated in float32.
        wide = torch.nn.functional.linear(float8_dequantize(*left), float8_dequantize(*right))
        return (wide if bias is None else wide + bias).to(dtype)
    return kernel(SCALED_MATMUL)(
        left.numbers,
        right.numbers,
        left.scale_inv,
        right.scale_inv,
        dtype=dtype,
        bias=bias,
        precise=precise,
    )


def check_blocks(
    a: Any,
    transposed_a: bool,
    b: Any,
    transposed_b: bool,
    dtype: torch.dtype,
    *,
    precise: bool,
    bias: bool,
    gelu: bool,
    grad: bool,
) -> None:
    """Refuse what cuBLAS has no kernel for, so that what works here works with it, too.

    Nothing, if the operands are not scaled by blocks. Source: common/gemm/cublaslt_gemm.cu.

    :param dtype: of the result.
    :param bias: there is a bias, or its gradient is asked for.
    :raises RuntimeError: cuBLAS has no such GEMM.
    """
    squares = [getattr(one, "_is_2D_scaled", None) for one in (a, b)]
    if None in squares:
        return
    if all(squares):
        raise RuntimeError("Only 1D by 1D, 1D by 2D, and 2D by 1D block scaling GEMM is supported")
    m, k = _sizes(a, transposed_a)
    n, _ = _sizes(b, not transposed_b)
    place = None
    if k % _INNER:
        place = f"Leading dimension requirement ({_INNER})"
    elif m % _OUTER or (n % _OUTER and not squares[1]):
        place = f"Outer dimension requirement ({_OUTER})"
    if place is not None:
        sizes = f"[{n}, {k}] by [{k}, {m}]"
        raise RuntimeError(f"{place} for block scaling GEMM. Caller must pad. Sizes: {sizes}.")
    why = None
    if TORCH_DTYPE[a._fp8_dtype] == TORCH_DTYPE[b._fp8_dtype] == torch.float8_e5m2:
        why = "both operands are E5M2"
    elif not precise:
        why = "the sums are not kept in float32 (use_split_accumulator)"
    if why is not None:
        raise RuntimeError(f"CUBLAS_STATUS_NOT_SUPPORTED: block scaling GEMM, but {why}")
    if gelu and grad and not bias:
        if dtype != torch.bfloat16:
            raise RuntimeError(
                "cuBLAS: an unsupported value or parameter was passed to the function: the "
                f"derivative of GELU in {dtype} behind a GEMM of block-scaled tensors"
            )
    elif gelu or (grad and bias):
        raise RuntimeError(
            "Epilogue requested outside of the available and tested cuBLAS functionality for "
            "float8 block scaled GEMM"
        )


def _sizes(x: Any, summed_last: bool) -> tuple[int, int]:
    """(rows, the size that is summed over)."""
    *rows, last = x.size()
    count = torch.Size(rows).numel()
    return (count, last) if summed_last else (last, count)
