"""Forward pass of a product that is added to an extra input, with a bias."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...quantization import Recipe
from ...quantized_tensor import Quantizer
from ..basic import AddExtraInput, BasicLinear, Bias
from ..op import FusedOperation, FusibleOperation, OperationContext
from ._window import replace_runs


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
            if basic_op_kwargs[1]:
                raise ValueError("Bias operation forward does not expect keyword arguments")
            bias = self.basic_ops[1].bias
            basic_op_ctxs[1].grad_input_quantizer = linear.get_grad_output_quantizer()
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

        def possible(linear: BasicLinear, add: AddExtraInput) -> bool:
            # What follows a product under `row` is a sum over ranks.
            return linear.tensor_parallel_mode != "row" and add._in_place

        def with_bias(linear: BasicLinear, bias: Bias, add: AddExtraInput) -> Any:
            if possible(linear, add):
                return ForwardLinearBiasAdd(linear=linear, bias=bias, add=add)
            return None

        def without(linear: BasicLinear, add: AddExtraInput) -> Any:
            if possible(linear, add):
                return ForwardLinearBiasAdd(linear=linear, bias=None, add=add)
            return None

        ops = replace_runs(ops, (BasicLinear, Bias, AddExtraInput), with_bias)
        return replace_runs(ops, (BasicLinear, AddExtraInput), without)
