"""Dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from ...quantized_tensor import Quantizer
from .. import _tape
from .._common import maybe_autocast_dtype, maybe_dequantize
from ..op import BasicOperation, Gradients, OperationContext


class Dropout(BasicOperation):
    """In training, sets entries to zero and scales the others by ``1 / (1 - p)``.

    :param p: probability of a zero.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.dropout_probability = p

    def _dropped(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, self.dropout_probability, training=True)

    def op_forward(
        self,
        ctx: OperationContext,
        input_: torch.Tensor,
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Any shape."""
        ctx.training = self.training
        if not self.training:
            return input_
        dtype = maybe_autocast_dtype(device_type=input_.device.type, default_dtype=input_.dtype)
        ctx.dtype = dtype
        # Always recorded: it keeps the mask, which cannot be drawn again.
        if not ctx.requires_grad:
            return self._dropped(maybe_dequantize(input_, dtype))
        ctx.tape = _tape.Tape(self._dropped, maybe_dequantize(input_, dtype))
        dropped: torch.Tensor = ctx.tape.take_result()
        return dropped

    def op_backward(
        self, ctx: OperationContext, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, Gradients]:
        """The gradient of the entries that were kept."""
        if not ctx.training:
            return grad_output, ()
        tape: _tape.Tape = ctx.tape
        ctx.tape = None
        (dx,) = tape.gradients(maybe_dequantize(grad_output, ctx.dtype))
        return dx, ()
