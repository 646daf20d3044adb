"""NVFP4: classes to ask for, which nothing is an instance of."""

from __future__ import annotations

from typing import Any

from accel_bridge import BridgeError

from .._fp8_support import check_nvfp4_support
from ..quantized_tensor import QuantizedTensor, Quantizer
from .storage.nvfp4_tensor_storage import NVFP4TensorStorage


def _refused() -> BridgeError:
    what, evidence, next_step = check_nvfp4_support()[1].split("\n")
    return BridgeError(
        what,
        evidence=evidence.removeprefix("  evidence: "),
        next=next_step.removeprefix("  next:     "),
    )


class NVFP4Quantizer(Quantizer):
    """:raises BridgeError: whatever it is made with: no backend has kernels for NVFP4."""

    def __init__(self, *args: Any, **options: Any) -> None:
        raise _refused()


class NVFP4Tensor(NVFP4TensorStorage, QuantizedTensor):  # type: ignore[misc]
    """:raises BridgeError: whatever it is made with: no backend has kernels for NVFP4."""

    def __new__(cls, *args: Any, **options: Any) -> NVFP4Tensor:
        """There is none."""
        raise _refused()
