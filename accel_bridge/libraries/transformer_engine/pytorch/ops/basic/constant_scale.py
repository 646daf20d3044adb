"""A constant factor."""

from __future__ import annotations

from typing import Any

import torch

from ...quantized_tensor import Quantizer
from ..op import BasicOperation, Gradients, OperationContext


class ConstantScale(BasicOperation):
    """Multiplies by ``scale``."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def op_forward(
        self,
        ctx: OperationContext,
        input_: torch.Tensor,
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Any shape."""
        return input_ * self.scale

    def op_backward(
        self, ctx: OperationContext, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, Gradients]:
        """The output's gradient, multiplied likewise."""
        return grad_output * self.scale, ()
