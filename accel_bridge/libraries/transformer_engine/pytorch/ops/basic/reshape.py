"""Another shape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...quantized_tensor import Quantizer
from ..op import BasicOperation, Gradients, OperationContext


class Reshape(BasicOperation):
    """``torch.reshape``.

    :param shape: one dimension may be -1.
    """

    def __init__(self, shape: Iterable[int]) -> None:
        super().__init__()
        self._shape = tuple(shape)

    def op_forward(
        self,
        ctx: OperationContext,
        input_: torch.Tensor,
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """The input in the new shape."""
        ctx.input_shape = input_.size()
        return input_.reshape(*self._shape)

    def op_backward(
        self, ctx: OperationContext, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, Gradients]:
        """The output's gradient in the old shape."""
        return grad_output.reshape(*ctx.input_shape), ()
