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
    """Can be made, compared and copied; no backend has kernels for what it would make.

    :param fp8_dtype: element type.
    :raises BridgeError: a tensor is to be quantized or made.
    """

    def __init__(self, fp8_dtype: Any, *, rowwise: bool = True, columnwise: bool = True) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = fp8_dtype

    def copy(self) -> MXFP8Quantizer:
        """Another one like this."""
        made = MXFP8Quantizer(
            self.dtype, rowwise=self.rowwise_usage, columnwise=self.columnwise_usage
        )
        made.internal, made.optimize_for_gemm = self.internal, self.optimize_for_gemm
        return made

    def quantize_impl(self, tensor: Any) -> Any:
        """:raises BridgeError: always."""
        raise _refused()

    def update_quantized(self, src: Any, dst: Any, *, noop_flag: Any = None) -> Any:
        """:raises BridgeError: always."""
        raise _refused()

    def make_empty(self, shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
        """:raises BridgeError: always."""
        raise _refused()


class MXFP8Tensor(MXFP8TensorStorage, QuantizedTensor):  # type: ignore[misc]
    """:raises BridgeError: whatever it is made with: no backend has kernels for MXFP8."""

    def __new__(cls, *args: Any, **options: Any) -> MXFP8Tensor:
        """There is none."""
        raise _refused()
