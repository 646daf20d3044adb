"""All-gather."""

from __future__ import annotations

from typing import Any

import torch

from ...distributed import gather_along_first_dim, reduce_scatter_along_first_dim
from ...quantized_tensor import Quantizer
from .._common import maybe_dequantize
from ..op import BasicOperation, Gradients, OperationContext


class AllGather(BasicOperation):
    """The ranks' inputs, one after the other along the first dimension.

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
        """[n, ...] -> [ranks * n, ...]."""
        if self.process_group_size == 1:
            return input_.detach()
        output: torch.Tensor
        output, _ = gather_along_first_dim(input_, self.process_group)
        return output

    def op_backward(
        self, ctx: OperationContext, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, Gradients]:
        """This rank's rows of the sum over ranks."""
        if self.process_group_size == 1:
            return grad_output, ()
        dy = maybe_dequantize(grad_output)
        dx, _ = reduce_scatter_along_first_dim(dy, self.process_group)
        return dx, ()
