"""Adds an extra input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...quantized_tensor import Quantizer
from ..op import BasicOperation, Gradients, OperationContext
from ._extra_tensors import ExtraTensors


class AddExtraInput(ExtraTensors, BasicOperation):
    """The sum of the input and an extra input.

    :param in_place: add to the extra input's memory. A linear operation before this one can then
        add its result in the same product; autograd does not notice the change.
    """

    num_extra_inputs: int = 1

    def __init__(self, *, in_place: bool = False) -> None:
        super().__init__()
        self._in_place = in_place

    def fuser_forward(
        self,
        basic_op_ctxs: list[OperationContext],
        input_: torch.Tensor,
        *,
        basic_op_extra_inputs: list[tuple[torch.Tensor, ...]],
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
        basic_op_kwargs: list[dict[str, Any]],
    ) -> tuple[torch.Tensor, Iterable[Iterable[torch.Tensor]]]:
        """Both of the same shape."""
        extra = basic_op_extra_inputs[0][0]
        if not self._in_place:
            return extra + input_, [()]
        extra = extra.detach()
        extra += input_
        return extra, [()]

    def fuser_backward(
        self,
        basic_op_ctxs: list[OperationContext],
        grad_output: torch.Tensor,
        *,
        basic_op_grad_extra_outputs: list[tuple[torch.Tensor, ...]],
    ) -> tuple[torch.Tensor, Iterable[Gradients], Iterable[Gradients]]:
        """Both have the output's gradient."""
        return grad_output, [()], [(grad_output,)]
