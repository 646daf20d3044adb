"""L2 normalization."""

from __future__ import annotations

from typing import Any

import torch

from ...quantized_tensor import Quantizer
from ...utils import clear_tensor_data
from .. import _tape
from .._common import maybe_dequantize
from ..op import BasicOperation, OperationContext
from .activation import wide


class L2Normalization(BasicOperation):
    """``x / sqrt(sum of squares + eps)`` over the last dimension; no parameters.

    :param seq_length: accepted for Transformer Engine's sake: nothing is compiled in advance.
    :param micro_batch_size: likewise.
    """

    def __init__(
        self,
        *,
        eps: float = 1e-6,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps

    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        """The function, differentiable by autograd."""
        return wide(self._normal, x)

    def _normal(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + self.eps)

    def op_forward(
        self,
        ctx: OperationContext,
        input_: torch.Tensor,
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """[..., h] -> [..., h], in the input's dtype."""
        return _tape.forward(ctx, self.normalize, maybe_dequantize(input_), records=False)

    def op_backward(
        self, ctx: OperationContext, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[()]]:
        """The gradient of the input."""
        (x,) = ctx.saved_tensors or ()
        (dx,) = _tape.backward(
            ctx, maybe_dequantize(grad_output, x.dtype), self.normalize, lambda: (x,)
        )
        clear_tensor_data(x)
        return dx, ()
