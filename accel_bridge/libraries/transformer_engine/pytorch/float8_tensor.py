"""The former home of :class:`Float8Tensor`."""

from __future__ import annotations

import warnings

from .tensor.float8_tensor import Float8Tensor

__all__ = ["Float8Tensor"]
warnings.warn(
    "transformer_engine.pytorch.float8_tensor is deprecated: import Float8Tensor from "
    "transformer_engine.pytorch.",
    DeprecationWarning,
    stacklevel=2,
)
