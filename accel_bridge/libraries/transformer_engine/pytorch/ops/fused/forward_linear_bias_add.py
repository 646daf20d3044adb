"""Forward pass of a product that is added to an extra input, with a bias."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...quantization import Recipe
from ...quantized_tensor import Quantizer
from ..basic import AddExtraInput, BasicLinear, Bias
from ..op import FusedOperation, FusibleOperation, OperationContext
from ._window import bias_behind, replace_runs


class ForwardLinearBiasAdd(FusedOperation):
    """Forward pass of a product that is added to an extra input, with a bias."""

    def __init__(self, *, linear: BasicLinear, bias: Bias | None, add: AddExtraInput) -> None:
        super().__init__([linear, add] if bias is None else [linear, bias, add])

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
        """[..., k] -> [..., m], in the extra input's memory."""
        linear: BasicLinear = self.basic_ops[0]
        bias = None
        if len(self.basic_ops) > 2:
            bias = bias_behind(linear, self.basic_ops[1], basic_op_ctxs[1], basic_op_kwargs[1])
        output = linear.compute_output(
            basic_op_ctxs[0],
            input_,
            prev_op_grad_output_quantizer,
            None,
            bias=bias,
            out=basic_op_extra_inputs[-1][0].detach(),
        )
        return output, [() for _ in self.basic_ops]

    @staticmethod
    def fuse_forward_ops(
        ops: list[FusibleOperation], *, recipe: Recipe | None = None, **unused: Any
    ) -> list[FusibleOperation]:
        """``ops`` with this fusion where it is possible."""

        def make(linear: BasicLinear, *rest: Any) -> FusibleOperation | None:
            *bias, add = rest
            # What follows a product under `row` is a sum over ranks.
            if linear.tensor_parallel_mode == "row" or not add._in_place:
                return None
            return ForwardLinearBiasAdd(linear=linear, bias=bias[0] if bias else None, add=add)

        ops = replace_runs(ops, (BasicLinear, Bias, AddExtraInput), make)
        return replace_runs(ops, (BasicLinear, AddExtraInput), make)
