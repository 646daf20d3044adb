"""A bias."""

from __future__ import annotations

from typing import Any

import torch

from ...quantized_tensor import Quantizer
from ...utils import canonicalize_device, canonicalize_dtype
from .._common import maybe_dequantize, maybe_quantize
from ..op import BasicOperation, Gradients, OperationContext


class Bias(BasicOperation):
    """Adds a parameter along the last dimension.

    :param size: the last dimension, over all ranks of ``tensor_parallel_group``.
    :param device: of the parameter; ``meta`` leaves it to the first forward pass.
    :param tensor_parallel: the last dimension is divided among the ranks.
    :raises ValueError: it cannot be divided.
    """

    bias: torch.nn.Parameter

    def __init__(
        self,
        size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        tensor_parallel: bool = False,
        tensor_parallel_group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self._size = size
        place = canonicalize_device(device)
        self.device = canonicalize_device(None) if place.type == "meta" else place
        ranks = torch.distributed.get_world_size(tensor_parallel_group) if tensor_parallel else 1
        if size % ranks:
            raise ValueError(
                "Invalid configuration for tensor parallelism "
                f"({size=}, tensor_parallel_size={ranks})"
            )
        self.tensor_parallel = ranks > 1
        self.tensor_parallel_group = tensor_parallel_group if tensor_parallel else None
        self.tensor_parallel_size = ranks
        self.local_size = size // ranks
        values = torch.empty(self.local_size, device="meta", dtype=canonicalize_dtype(dtype))
        self.register_parameter("bias", torch.nn.Parameter(values))
        if place.type != "meta":
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Zeros, on the operation's device."""
        self.bias = torch.nn.Parameter(torch.zeros_like(self.bias, device=self.device))

    def pre_first_fuser_forward(self) -> None:
        """Make a parameter that is still on ``meta``."""
        super().pre_first_fuser_forward()
        if self.bias.device.type == "meta":
            self.reset_parameters()

    def op_forward(
        self,
        ctx: OperationContext,
        input_: torch.Tensor,
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """[..., size] -> [..., size]."""
        ctx.grad_input_quantizer = prev_op_grad_output_quantizer
        return input_ + self.bias

    def op_backward(
        self, ctx: OperationContext, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, Gradients]:
        """Gradients of the input and of the bias."""
        dy = maybe_dequantize(grad_output)
        db = dy.sum(tuple(range(dy.dim() - 1))) if dy.dim() > 1 else dy
        quantizer: Quantizer | None = ctx.grad_input_quantizer if dy.dim() > 1 else None
        return (grad_output if quantizer is None else maybe_quantize(dy, quantizer)), (db,)
