"""Quantizing with a scale for each block."""

from __future__ import annotations

from typing import Any

import torch

from accel_bridge.kernels import FLOAT8_BLOCK_QUANTIZE, active

from ..constants import TE_DType_To_Torch
from ._quantize import _store, fp8_transpose


def _padded(factors: torch.Tensor, transposed: bool) -> torch.Tensor:
    """Factors as products read them: columns padded to a multiple of four."""
    if transposed:
        factors = factors.t()
    missing = -factors.shape[1] % 4
    return torch.nn.functional.pad(factors, (0, missing)).contiguous()


def _copies(input: torch.Tensor, quantizer: Any) -> dict[str, torch.Tensor | None]:
    """The copies with blocks along rows and along columns, with their factors."""
    kernel = active.kernel(FLOAT8_BLOCK_QUANTIZE)
    matrix = input.reshape(-1, input.shape[-1]) if input.dim() else input.reshape(1, 1)
    square = quantizer.block_scaling_dim == 2
    options = {
        "dtype": TE_DType_To_Torch[quantizer.dtype],
        "rows": 128 if square else 1,
        "power_of_2": quantizer.force_pow_2_scales,
        "epsilon": quantizer.amax_epsilon,
    }
    made: dict[str, torch.Tensor | None] = dict.fromkeys(
        ("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv")
    )
    numbers = factors = None
    if quantizer.rowwise_usage or (square and quantizer.columnwise_usage):
        numbers, factors = kernel(matrix, **options)
    if quantizer.rowwise_usage and numbers is not None and factors is not None:
        # In this order it is no view: Megatron's FSDP replaces its memory.
        made["rowwise_data"] = numbers.view(input.shape).view(torch.uint8)
        made["rowwise_scale_inv"] = _padded(factors, transposed=not square)
    if quantizer.columnwise_usage:
        shape = quantizer.get_columnwise_shape(input.shape)
        if numbers is not None and factors is not None and square:
            turned = fp8_transpose(numbers.view(torch.uint8), quantizer.dtype)
            turned = turned.view(TE_DType_To_Torch[quantizer.dtype])
            turned_factors = _padded(factors, transposed=True)
        else:
            turned, along = kernel(matrix.t(), **options)
            turned_factors = _padded(along, transposed=True)
        made["columnwise_data"] = turned.view(shape).view(torch.uint8)
        made["columnwise_scale_inv"] = turned_factors
    return made


def by_blocks(
    input: torch.Tensor, quantizer: Any, output: Any, noop: torch.Tensor | None
) -> dict[str, Any] | None:
    """Quantize: the parts of a new tensor, or None after ``output`` was written."""
    parts = _copies(input, quantizer)
    if output is None:
        return {
            **parts,
            "fp8_dtype": quantizer.dtype,
            "quantizer": quantizer,
            "is_2D_scaled": quantizer.block_scaling_dim == 2,
        }
    for name, new in parts.items():
        place = getattr(output, f"_{name}")
        if new is None or place is None or place.shape != new.shape:
            setattr(output, f"_{name}", new)
        else:
            _store(place, new, noop)
    output._fp8_dtype = quantizer.dtype
    return None
