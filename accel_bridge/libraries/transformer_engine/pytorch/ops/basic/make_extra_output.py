"""Returns an intermediate tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...quantized_tensor import Quantizer
from ..op import BasicOperation, Gradients, OperationContext
from ._extra_tensors import ExtraTensors


class MakeExtraOutput(ExtraTensors, BasicOperation):
    """The input, twice: as output, and as an extra output of the chain.

    :param in_place: add gradients in the memory of the extra output's gradient. A linear operation
        after this one can then add its input's gradient in the same product.
    """

    num_extra_outputs: int = 1

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
        """Any shape."""
        return input_, [(input_,)]

    def fuser_backward(
        self,
        basic_op_ctxs: list[OperationContext],
        grad_output: torch.Tensor,
        *,
        basic_op_grad_extra_outputs: list[tuple[torch.Tensor, ...]],
    ) -> tuple[torch.Tensor, Iterable[Gradients], Iterable[Gradients]]:
        """The sum of both outputs' gradients."""
        grad_extra = basic_op_grad_extra_outputs[0][0]
        if self._in_place:
            grad_extra += grad_output
            return grad_extra, [()], [()]
        return grad_extra + grad_output, [()], [()]
