"""The base classes, which live in transformer_engine.pytorch.quantized_tensor."""

from __future__ import annotations

from ..quantized_tensor import (
    QuantizedTensor,
    QuantizedTensorStorage,
    Quantizer,
    prepare_for_saving,
    restore_from_saved,
)

__all__ = [
    "QuantizedTensor",
    "QuantizedTensorStorage",
    "Quantizer",
    "prepare_for_saving",
    "restore_from_saved",
]
