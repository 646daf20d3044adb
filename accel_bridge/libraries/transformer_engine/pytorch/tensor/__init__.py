"""Quantized tensors and quantizers.

With the first import, torch's casts of modules (``float``, ``half``, ``bfloat16``) learn to leave
quantized parameters quantized, as Transformer Engine does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from accel_bridge.libraries.names import lazy_package

_EXPORTS = {
    "float8_tensor": ("Float8CurrentScalingQuantizer", "Float8Quantizer", "Float8Tensor"),
    "float8_blockwise_tensor": ("Float8BlockQuantizer", "Float8BlockwiseQTensor"),
    "mxfp8_tensor": ("MXFP8Quantizer", "MXFP8Tensor"),
    "nvfp4_tensor": ("NVFP4Quantizer", "NVFP4Tensor"),
    "storage": (
        "Float8BlockwiseQTensorStorage",
        "Float8TensorStorage",
        "MXFP8TensorStorage",
        "NVFP4TensorStorage",
    ),
    "utils": ("cast_master_weights_to_fp8", "quantize_master_weights", "replace_raw_data"),
    "_bases": (
        "QuantizedTensor",
        "QuantizedTensorStorage",
        "Quantizer",
        "prepare_for_saving",
        "restore_from_saved",
    ),
}
_load, __dir__ = lazy_package(__name__, _EXPORTS, ("storage", "utils"))


def __getattr__(name: str) -> Any:
    return _load(name)


def _cast(dtype: torch.dtype) -> Callable[[torch.nn.Module], torch.nn.Module]:
    """A module's cast to ``dtype``; quantized parameters keep their numbers and show ``dtype``."""

    def one(tensor: Any) -> torch.Tensor:
        if hasattr(tensor, "to_dtype"):
            shown: torch.Tensor = tensor.to_dtype(dtype)
            return shown
        plain: torch.Tensor = tensor.to(dtype) if tensor.is_floating_point() else tensor
        return plain

    def module_cast(self: torch.nn.Module) -> torch.nn.Module:
        applied: torch.nn.Module = self._apply(one)
        return applied

    return module_cast


def get_all_tensor_types() -> list[type]:
    """Every class of tensors that modules accept."""
    names = [
        name
        for module in ("float8_tensor", "float8_blockwise_tensor", "mxfp8_tensor")
        for name in _EXPORTS[module]
        if name.endswith("Tensor")
    ]
    names += ["NVFP4Tensor", *_EXPORTS["storage"]]
    return [torch.Tensor, torch.nn.Parameter, *(_load(name) for name in names)]


torch.nn.Module.float = _cast(torch.float32)  # type: ignore[method-assign, assignment]
torch.nn.Module.half = _cast(torch.float16)  # type: ignore[method-assign, assignment]
torch.nn.Module.bfloat16 = _cast(torch.bfloat16)  # type: ignore[method-assign, assignment]
