"""FP8 quantizing and products: torch's where its rules allow it, else Triton's."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch

from accel_bridge.backends.cuda import fused
from accel_bridge.backends.cuda.kernels._choice import capability, not_for_triton
from accel_bridge.kernels import (
    FLOAT8_BLOCK_QUANTIZE,
    FLOAT8_CURRENT_QUANTIZE,
    FLOAT8_QUANTIZE,
    SCALED_MATMUL,
)

_FIRST: Final = (8, 9)
_BLOCK: Final = 128
#: Bytes whose multiples factors of cuBLAS's products begin at.
_ALIGNMENT: Final = 16


def _without_float8(device: torch.device) -> str | None:
    """Why the device has no FP8 arithmetic, or None."""
    if device.type != "cuda" or capability(device) >= _FIRST:
        return None
    major, minor = capability(device)
    return f"FP8 arithmetic needs compute capability 8.9 or higher, not {major}.{minor}"


def float8_quantize(
    input: torch.Tensor,
    scale: torch.Tensor,
    *,
    dtype: torch.dtype,
    amax: torch.Tensor | None = None,
    turned: torch.Tensor | None = None,
) -> torch.Tensor:
    """The contract ``float8_quantize``."""
    from accel_bridge.backends.cuda.fused import float8

    return float8.quantize(input, scale, dtype=dtype, amax=amax, turned=turned)


def _quantize_supports(
    input: torch.Tensor,
    scale: torch.Tensor,
    *,
    dtype: torch.dtype,
    amax: torch.Tensor | None = None,
    turned: torch.Tensor | None = None,
) -> str | None:
    return _without_float8(input.device) or not_for_triton(input)


def float8_current_quantize(
    input: torch.Tensor,
    *,
    dtype: torch.dtype,
    amax: torch.Tensor,
    scale: torch.Tensor,
    power_of_2: bool = False,
    epsilon: float = 0.0,
    turned: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The contract ``float8_current_quantize``."""
    from accel_bridge.backends.cuda.fused import float8

    return float8.current_quantize(
        input,
        dtype=dtype,
        amax=amax,
        scale=scale,
        power_of_2=power_of_2,
        epsilon=epsilon,
        turned=turned,
    )


def _current_quantize_supports(
    input: torch.Tensor,
    *,
    dtype: torch.dtype,
    amax: torch.Tensor,
    scale: torch.Tensor,
    power_of_2: bool = False,
    epsilon: float = 0.0,
    turned: torch.Tensor | None = None,
) -> str | None:
    return _without_float8(input.device) or not_for_triton(input)


def float8_block_quantize(
    input: torch.Tensor,
    *,
    dtype: torch.dtype,
    rows: int,
    power_of_2: bool = True,
    epsilon: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The contract ``float8_block_quantize``."""
    from accel_bridge.backends.cuda.fused import float8

    options = {"power_of_2": power_of_2, "epsilon": epsilon}
    return float8.block_quantize(input, dtype=dtype, rows=rows, **options)  # type: ignore[arg-type]


def _block_quantize_supports(
    input: torch.Tensor,
    *,
    dtype: torch.dtype,
    rows: int,
    power_of_2: bool = True,
    epsilon: float = 0.0,
) -> str | None:
    return _without_float8(input.device) or not_for_triton(input)


@lru_cache(maxsize=8)
def _torch_takes_blocks(device: torch.device) -> bool:
    """Whether this torch multiplies FP8 tensors with block factors here; tried once."""
    numbers = torch.zeros(_BLOCK, 4 * _BLOCK, dtype=torch.float8_e4m3fn, device=device)
    rows = torch.ones(4, _BLOCK, device=device).t()
    square = torch.ones(1, 4, device=device)
    try:
        for b_factors in (rows, square):
            torch._scaled_mm(numbers, numbers.t(), rows, b_factors.t(), out_dtype=torch.bfloat16)
    except (RuntimeError, ValueError, NotImplementedError):
        return False
    return True


def _aligned(factors: torch.Tensor) -> torch.Tensor:
    """Where cuBLAS reads them: from a multiple of 16 bytes on. One of several may lie elsewhere."""
    return factors.clone() if factors.data_ptr() % _ALIGNMENT else factors


def _as_torch_wants(factors: torch.Tensor, rows: int) -> torch.Tensor:
    """Factors of rows lie by columns, those of squares by rows."""
    if factors.shape[0] == rows:
        return _aligned(factors.t().contiguous()).t()
    return _aligned(factors.contiguous())


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
    if not _for_torch(a, b, a_factors, b_factors):
        from accel_bridge.backends.cuda.fused import float8_products

        return float8_products.scaled_matmul(a, b, a_factors, b_factors, dtype=dtype, bias=bias)
    by_block = a_factors.numel() > 1
    if by_block:
        a_factors = _as_torch_wants(a_factors, a.shape[0])
        b_factors = _as_torch_wants(b_factors, b.shape[0]).t()
    else:
        a_factors, b_factors = _aligned(a_factors), _aligned(b_factors)
    # cuBLAS adds a bias of the result's own half precision.
    inside = bias is not None and bias.dtype == dtype and dtype != torch.float32
    output = torch._scaled_mm(
        a,
        b.t(),
        a_factors,
        b_factors,
        bias=bias if inside else None,
        out_dtype=dtype,
        use_fast_accum=not precise and not by_block,
    )
    return output if bias is None or inside else output.add_(bias)


def _for_torch(
    a: torch.Tensor, b: torch.Tensor, a_factors: torch.Tensor, b_factors: torch.Tensor
) -> bool:
    """Whether torch's rules allow a product."""
    if not a.numel() or a.shape[1] % 16 or b.shape[0] % 16:
        return False
    if a_factors.numel() == b_factors.numel() == 1:
        return True
    # How 128 x 128 factors are padded differs between versions unless k is a multiple of 512.
    if a.shape[1] % (4 * _BLOCK) or a_factors.numel() == 1 or b_factors.numel() == 1:
        return False
    if a.shape[0] % 4 or b.shape[0] % _BLOCK or a_factors.shape[0] == b_factors.shape[0] == 1:
        return False
    return _torch_takes_blocks(a.device)


def _matmul_supports(
    a: torch.Tensor,
    b: torch.Tensor,
    a_factors: torch.Tensor,
    b_factors: torch.Tensor,
    *,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    precise: bool = True,
) -> str | None:
    if a.dtype == b.dtype == torch.float8_e5m2:
        return "both operands are E5M2"
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"a result in {dtype}"
    missing = fused.missing()
    if missing is not None and not _for_torch(a, b, a_factors, b_factors):
        return missing
    return _without_float8(a.device)


_TRITON: Final = "accel_bridge, in Triton"
KERNELS: Final = (
    FLOAT8_QUANTIZE.kernel(
        float8_quantize,
        "one pass, largest magnitude and transpose included",
        _quantize_supports,
        _TRITON,
    ),
    FLOAT8_CURRENT_QUANTIZE.kernel(
        float8_current_quantize,
        "two passes: the largest magnitude; the numbers and their transpose",
        _current_quantize_supports,
        _TRITON,
    ),
    FLOAT8_BLOCK_QUANTIZE.kernel(
        float8_block_quantize, "one pass", _block_quantize_supports, _TRITON
    ),
)
PRODUCT: Final = SCALED_MATMUL.kernel(
    scaled_matmul,
    "cuBLAS's FP8 product; Triton where its rules exclude a shape",
    _matmul_supports,
    source="torch._scaled_mm",
)
