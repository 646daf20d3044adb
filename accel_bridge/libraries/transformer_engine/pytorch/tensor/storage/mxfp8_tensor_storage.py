"""MXFP8: a class to ask for, which nothing is an instance of."""

from __future__ import annotations

from ...quantized_tensor import QuantizedTensorStorage


class MXFP8TensorStorage(QuantizedTensorStorage):
    """No backend has kernels for MXFP8, so there is no such storage."""
