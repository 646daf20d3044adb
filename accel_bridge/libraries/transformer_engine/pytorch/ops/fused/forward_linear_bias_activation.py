"""Forward pass of a product and a bias, which is added in the product."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...quantization import Recipe
from ...quantized_tensor import Quantizer
from ..basic import BasicLinear, Bias
from ..op import FusedOperation, FusibleOperation, OperationContext
from ._window import bias_behind, replace_runs


class ForwardLinearBiasActivation(FusedOperation):
    """Forward pass of a product and a bias, which is added in the product."""

    def __init__(self, *, linear: BasicLinear, bias: Bias | None, activation: None) -> None:
        """:raises NotImplementedError: an activation, as in Transformer Engine."""
        if activation is not None:
            raise NotImplementedError("Activations are not yet supported")
        super().__init__([linear] if bias is None else [linear, bias])

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
        """[..., k] -> [..., m]."""
        linear: BasicLinear = self.basic_ops[0]
        bias = None
        if len(self.basic_ops) > 1:
            bias = bias_behind(linear, self.basic_ops[1], basic_op_ctxs[1], basic_op_kwargs[1])
        output = linear.compute_output(
            basic_op_ctxs[0],
            input_,
            prev_op_grad_output_quantizer,
            next_op_input_quantizer,
            bias=bias,
        )
        return output, [() for _ in self.basic_ops]

    @staticmethod
    def fuse_forward_ops(
        ops: list[FusibleOperation], *, recipe: Recipe | None = None, **unused: Any
    ) -> list[FusibleOperation]:
        """``ops`` with this fusion where it is possible."""

        def make(linear: BasicLinear, bias: Bias) -> FusibleOperation | None:
            # What follows a product under `row` is a sum over ranks. In float32 Transformer Engine
            # adds the bias apart.
            low = linear.weight.dtype in (torch.float16, torch.bfloat16)
            if linear.tensor_parallel_mode == "row" or not low:
                return None
            return ForwardLinearBiasActivation(linear=linear, bias=bias, activation=None)

        return replace_runs(ops, (BasicLinear, Bias), make)
