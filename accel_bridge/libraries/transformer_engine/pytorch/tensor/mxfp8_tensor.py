"""MXFP8: classes to ask for, which nothing is an instance of."""

from __future__ import annotations

from typing import Any

from accel_bridge import BridgeError

from .._fp8_support import check_mxfp8_support
from ..quantized_tensor import QuantizedTensor, Quantizer
from .storage.mxfp8_tensor_storage import MXFP8TensorStorage


def _refused() -> BridgeError:
    what, evidence, next_step = check_mxfp8_support()[1].split("\n")
    return BridgeError(
        what,
        evidence=evidence.removeprefix("  evidence: "),
        next=next_step.removeprefix("  next:     "),
    )


class MXFP8Quantizer(Quantizer):
    """:raises BridgeError: whatever it is made with: no backend has kernels for MXFP8."""

    def __init__(self, *args: Any, **options: Any) -> None:
        raise _refused()


class MXFP8Tensor(MXFP8TensorStorage, QuantizedTensor):  # type: ignore[misc]
    """:raises BridgeError: whatever it is made with: no backend has kernels for MXFP8."""

    def __new__(cls, *args: Any, **options: Any) -> MXFP8Tensor:
        """There is none."""
        raise _refused()
