"""NVFP4: a class to ask for, which nothing is an instance of."""

from __future__ import annotations

from ...quantized_tensor import QuantizedTensorStorage


class NVFP4TensorStorage(QuantizedTensorStorage):
    """No backend has kernels for NVFP4, so there is no such storage."""
