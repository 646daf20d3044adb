"""What quantizers to FP8 have in common, whatever their scales."""

from __future__ import annotations

from typing import Any

import torch

from ..cpp_extensions._enums import DType
from ..cpp_extensions._quantize import quantize
from ..quantized_tensor import Quantizer
from ..utils import devices_match

Maybe = torch.Tensor | None


class Float8AnyQuantizer(Quantizer):
    """A quantizer whose tensors are made of the parts that :meth:`_parts` computes."""

    dtype: DType

    def _check_target(self, dst: Any) -> None:
        """:raises: ``dst`` is no tensor of this quantizer's kind."""
        raise NotImplementedError

    def _parts(self, tensor: torch.Tensor, output: Any, noop: Maybe) -> dict[str, Any] | None:
        """The parts of a new tensor; None where ``output`` was overwritten."""
        raise NotImplementedError

    def _classes(self) -> tuple[type, type]:
        """The storage, and the tensor with that storage."""
        raise NotImplementedError

    def update_quantized(self, src: torch.Tensor, dst: Any, *, noop_flag: Maybe = None) -> Any:
        """Quantize ``src`` into ``dst``, unless ``noop_flag`` holds a 1."""
        self._check_target(dst)
        if not devices_match(src.device, dst.device):
            src = src.to(device=dst.device)
        quantize(src, self, dst, noop_flag)
        return dst

    def quantize_impl(self, tensor: torch.Tensor) -> Any:
        """A quantized copy."""
        return quantize(tensor, self)

    def _quantized(self, tensor: torch.Tensor, output: Any, noop: Maybe) -> Any:
        """A new tensor or storage, or ``output`` overwritten."""
        parts = self._parts(tensor, output, noop)
        if parts is None:
            return output
        storage, whole = self._classes()
        if self.internal:
            return storage(**parts)
        return whole(shape=tensor.shape, dtype=tensor.dtype, device=tensor.device, **parts)
