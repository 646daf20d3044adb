"""What several operations need."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch

from ..quantized_tensor import QuantizedTensorStorage, Quantizer
from ..utils import canonicalize_dtype

#: What parameters and results of an operation may be.
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def is_quantized_tensor(tensor: Any) -> TypeGuard[QuantizedTensorStorage]:
    """Whether ``tensor`` holds quantized data."""
    return isinstance(tensor, QuantizedTensorStorage)


def maybe_dequantize(tensor: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The values of ``tensor`` as an ordinary contiguous tensor, in ``dtype`` if one is given."""
    if is_quantized_tensor(tensor):
        quantized: Any = tensor
        values: torch.Tensor = quantized.dequantize(dtype=dtype)
        return values
    plain: torch.Tensor = tensor
    if dtype is not None and plain.dtype != dtype:
        plain = plain.to(dtype)
    return plain.contiguous()


def maybe_quantize(tensor: torch.Tensor, quantizer: Quantizer | None) -> torch.Tensor:
    """``tensor``, quantized for the neighbour that asks for it."""
    made: torch.Tensor = tensor if quantizer is None else quantizer(tensor)
    return made


def maybe_autocast_dtype(
    *, device_type: str = "cuda", default_dtype: torch.dtype | None = None
) -> torch.dtype:
    """The dtype of :class:`torch.autocast` where it is enabled, else ``default_dtype``."""
    if torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    dtype: torch.dtype = canonicalize_dtype(default_dtype)
    return dtype


def check_float(dtype: torch.dtype) -> torch.dtype:
    """``dtype`` if parameters may have it.

    :raises ValueError: any other dtype.
    """
    if dtype not in FLOATS:
        raise ValueError(f"Supported dtypes are float32, float16, bfloat16 (got {dtype})")
    return dtype
