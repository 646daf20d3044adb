"""Quantization of a tensor between operations."""

from __future__ import annotations

from typing import Any

import torch

from ...quantization import FP8GlobalStateManager
from ...quantized_tensor import Quantizer
from .._common import is_quantized_tensor
from ..op import BasicOperation, Gradients, OperationContext


class Quantize(BasicOperation):
    """Quantizes by the recipe of ``autocast``; outside of it, the identity.

    :param forward: quantize the input.
    :param backward: quantize the output's gradient.
    """

    def __init__(self, forward: bool = True, backward: bool = False) -> None:
        super().__init__()
        self._quantize_forward = forward
        self._quantize_backward = backward

    def num_quantizers(self, mode: str) -> int:
        """One where it quantizes."""
        return int(self._quantize_forward if mode == "forward" else self._quantize_backward)

    def _quantized(self, mode: str, tensor: torch.Tensor) -> torch.Tensor:
        quantizer = self.get_quantizer(mode, 0)
        if quantizer is None or is_quantized_tensor(tensor):
            return tensor
        quantized: torch.Tensor = quantizer(tensor)
        return quantized

    def op_forward(
        self,
        ctx: OperationContext,
        input_: torch.Tensor,
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Any shape that the recipe can quantize."""
        enabled = FP8GlobalStateManager.is_fp8_enabled()
        ctx.quantize_backward = enabled and self._quantize_backward
        if enabled and self._quantize_forward:
            return self._quantized("forward", input_)
        return input_

    def op_backward(
        self, ctx: OperationContext, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, Gradients]:
        """The output's gradient."""
        if ctx.quantize_backward:
            return self._quantized("backward", grad_output), ()
        return grad_output, ()
