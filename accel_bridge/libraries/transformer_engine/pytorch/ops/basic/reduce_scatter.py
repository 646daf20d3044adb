"""Reduce-scatter."""

from __future__ import annotations

from typing import Any

import torch

from ...distributed import gather_along_first_dim, reduce_scatter_along_first_dim
from ...quantized_tensor import Quantizer
from .._common import maybe_dequantize
from ..op import BasicOperation, Gradients, OperationContext


class ReduceScatter(BasicOperation):
    """This rank's rows of the sum of the ranks' inputs.

    :param process_group: default: all ranks.
    """

    def __init__(self, process_group: torch.distributed.ProcessGroup | None = None) -> None:
        super().__init__()
        self.process_group = process_group
        self.process_group_size = torch.distributed.get_world_size(process_group)

    def op_forward(
        self,
        ctx: OperationContext,
        input_: torch.Tensor,
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """[ranks * n, ...] -> [n, ...].

        :raises RuntimeError: the rows cannot be divided among the ranks.
        """
        if self.process_group_size == 1:
            return input_.detach()
        if not input_.dim() or input_.shape[0] % self.process_group_size:
            raise RuntimeError(
                "Attempted to reduce-scatter a tensor "
                f"with shape={list(input_.shape)} over {self.process_group_size} processes"
            )
        x = maybe_dequantize(input_)
        output: torch.Tensor
        output, _ = reduce_scatter_along_first_dim(x, self.process_group)
        return output

    def op_backward(
        self, ctx: OperationContext, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, Gradients]:
        """The ranks' gradients, one after the other."""
        if self.process_group_size == 1:
            return grad_output.detach(), ()
        dx, _ = gather_along_first_dim(grad_output, self.process_group)
        return dx, ()
