"""FP8 for several experts at once: Triton's, or cuBLAS's where each product is large.

Legend: t rows sorted by expert, e experts, k input size, m output size.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import Any, Final

import torch

from accel_bridge.backends.cuda.kernels._choice import not_for_triton
from accel_bridge.backends.cuda.kernels.float8 import _without_float8
from accel_bridge.kernels import (
    GROUPED_FLOAT8_BLOCK_TURN,
    GROUPED_FLOAT8_QUANTIZE,
    GROUPED_SCALED_MATMUL,
    GROUPED_SCALED_WEIGHT_GRADIENT,
    Kernel,
    reference_kernel,
)

#: The first Triton with descriptors of tensors.
_DESCRIPTORS: Final = (3, 4)
#: Bytes of which rows of operands are multiples.
_MULTIPLE: Final = 16
#: Experts whose rows a program looks through at once.
_EXPERTS: Final = 1024


def _without_descriptors() -> str | None:
    """Why this Triton has no descriptors of tensors, by which the copy engine reads; or None."""
    # Not by looking into Triton, which would import it.
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "Triton is not installed"
    if tuple(map(int, version.split(".")[:2])) < _DESCRIPTORS:
        return f"Triton {version} has no descriptors of tensors (3.4 has)"
    return None


def _too_many(splits: Sequence[int]) -> str | None:
    return f"{len(splits)} experts" if not 0 < len(splits) <= _EXPERTS else None


def grouped_quantize(
    input: torch.Tensor,
    splits: Sequence[int],
    *,
    dtype: torch.dtype,
    scale: torch.Tensor | None = None,
    amax: torch.Tensor | None = None,
    power_of_2: bool = False,
    epsilon: float = 0.0,
    turned: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The contract ``grouped_float8_quantize``."""
    from accel_bridge.backends.cuda.fused import grouped_float8

    return grouped_float8.grouped_quantize(
        input,
        splits,
        dtype=dtype,
        scale=scale,
        amax=amax,
        power_of_2=power_of_2,
        epsilon=epsilon,
        turned=turned,
    )


def _quantize_supports(
    input: torch.Tensor,
    splits: Sequence[int],
    *,
    dtype: torch.dtype,
    scale: torch.Tensor | None = None,
    amax: torch.Tensor | None = None,
    power_of_2: bool = False,
    epsilon: float = 0.0,
    turned: torch.Tensor | None = None,
) -> str | None:
    return _without_float8(input.device) or not_for_triton(input) or _too_many(splits)


def grouped_block_turn(
    input: torch.Tensor,
    splits: Sequence[int],
    *,
    dtype: torch.dtype,
    power_of_2: bool = True,
    epsilon: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The contract ``grouped_float8_block_turn``."""
    from accel_bridge.backends.cuda.fused import grouped_float8

    return grouped_float8.grouped_block_turn(
        input, splits, dtype=dtype, power_of_2=power_of_2, epsilon=epsilon
    )


def _turn_supports(
    input: torch.Tensor,
    splits: Sequence[int],
    *,
    dtype: torch.dtype,
    power_of_2: bool = True,
    epsilon: float = 0.0,
) -> str | None:
    return _without_float8(input.device) or not_for_triton(input) or _too_many(splits)


def grouped_scaled_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    a_factors: torch.Tensor,
    b_factors: torch.Tensor,
    splits: Sequence[int],
    *,
    dtype: torch.dtype,
    precise: bool = True,
) -> torch.Tensor:
    """The contract ``grouped_scaled_matmul``."""
    from accel_bridge.backends.cuda.fused import grouped_products

    return grouped_products.grouped_scaled_matmul(
        a, b, a_factors, b_factors, splits, dtype=dtype, precise=precise
    )


def _matmul_supports(
    a: torch.Tensor,
    b: torch.Tensor,
    a_factors: torch.Tensor,
    b_factors: torch.Tensor,
    splits: Sequence[int],
    *,
    dtype: torch.dtype,
    precise: bool = True,
) -> str | None:
    if a.dtype == b.dtype == torch.float8_e5m2:
        return "both operands are E5M2"
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"a result in {dtype}"
    if a.shape[1] % _MULTIPLE:
        return f"rows of {a.shape[1]} numbers, no multiple of {_MULTIPLE}"
    return _without_float8(a.device) or _too_many(splits)


def grouped_scaled_weight_gradient(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    input_factors: torch.Tensor,
    grad_factors: torch.Tensor,
    splits: Sequence[int],
    main_grad: torch.Tensor,
    places: Sequence[int],
    *,
    sizes: tuple[int, int],
) -> None:
    """The contract ``grouped_scaled_weight_gradient``."""
    from accel_bridge.backends.cuda.fused import grouped_products

    grouped_products.grouped_scaled_weight_gradient(
        input,
        grad_output,
        input_factors,
        grad_factors,
        splits,
        main_grad,
        places,
        sizes=sizes,
    )


def _gradient_supports(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    input_factors: torch.Tensor,
    grad_factors: torch.Tensor,
    splits: Sequence[int],
    main_grad: torch.Tensor,
    places: Sequence[int],
    *,
    sizes: tuple[int, int],
) -> str | None:
    if input.dtype == grad_output.dtype == torch.float8_e5m2:
        return "both operands are E5M2"
    if main_grad.dtype != torch.float32:
        return f"sums in {main_grad.dtype}"
    if any(place % 4 for place in places):
        return "sums that do not begin at multiples of 16 bytes"
    return _without_float8(input.device) or _too_many(splits)


_TRITON: Final = "accel_bridge, in Triton"


def _product_kernel() -> Kernel[Any, Any]:
    without = _without_descriptors()
    if without is not None:
        return reference_kernel(GROUPED_SCALED_MATMUL, without)
    why = "every expert in one launch; 1.5 times bfloat16's on an H200"
    return GROUPED_SCALED_MATMUL.kernel(grouped_scaled_matmul, why, _matmul_supports, _TRITON)


KERNELS: Final = (
    GROUPED_FLOAT8_QUANTIZE.kernel(
        grouped_quantize,
        "every expert in two launches: the largest magnitudes; the numbers and their transposes",
        _quantize_supports,
        _TRITON,
    ),
    GROUPED_FLOAT8_BLOCK_TURN.kernel(
        grouped_block_turn, "every expert in one launch", _turn_supports, _TRITON
    ),
    _product_kernel(),
    GROUPED_SCALED_WEIGHT_GRADIENT.kernel(
        grouped_scaled_weight_gradient,
        "every expert in one launch, added to float32 sums",
        _gradient_supports,
        _TRITON,
    ),
)
