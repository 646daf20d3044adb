"""Quantized tensors without a tensor's interface."""

from __future__ import annotations

from accel_bridge.libraries.names import lazy_package

__getattr__, __dir__ = lazy_package(
    __name__,
    {
        "float8_blockwise_tensor_storage": ("Float8BlockwiseQTensorStorage",),
        "float8_tensor_storage": ("Float8TensorStorage",),
        "mxfp8_tensor_storage": ("MXFP8TensorStorage",),
        "nvfp4_tensor_storage": ("NVFP4TensorStorage",),
    },
    ("grouped_tensor",),
)
