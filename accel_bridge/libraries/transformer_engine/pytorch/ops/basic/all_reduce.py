"""All-reduce."""

from __future__ import annotations

from typing import Any

import torch

from ...quantized_tensor import Quantizer
from .._common import maybe_dequantize
from ..op import BasicOperation, Gradients, OperationContext


class AllReduce(BasicOperation):
    """The sum of the ranks' inputs.

    What follows is taken to be the same on every rank, so that the gradients are equal already.

    :param process_group: default: all ranks.
    :param reduce_in_backward: accepted for Transformer Engine's sake, which ignores it too.
    """

    def __init__(
        self,
        process_group: torch.distributed.ProcessGroup | None = None,
        reduce_in_backward: bool = True,
    ) -> None:
        super().__init__()
        self.process_group = process_group
        self._reduce_in_backward = reduce_in_backward

    def op_forward(
        self,
        ctx: OperationContext,
        input_: torch.Tensor,
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Any shape; in place where the input is not needed by what came before."""
        if torch.distributed.get_world_size(self.process_group) == 1:
            return input_
        x = maybe_dequantize(input_)
        torch.distributed.all_reduce(x, group=self.process_group)
        return x

    def op_backward(
        self, ctx: OperationContext, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, Gradients]:
        """The output's gradient."""
        return grad_output, ()
