"""Forward pass of a scaled product that is added to an extra input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...quantization import Recipe
from ...quantized_tensor import Quantizer
from ..basic import AddExtraInput, BasicLinear, ConstantScale
from ..op import FusedOperation, FusibleOperation, OperationContext
from ._window import replace_runs


class ForwardLinearScaleAdd(FusedOperation):
    """Forward pass of a scaled product that is added to an extra input."""

    def __init__(self, *, linear: BasicLinear, scale: ConstantScale, add: AddExtraInput) -> None:
        super().__init__([linear, scale, add])

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
        output = linear.compute_output(
            basic_op_ctxs[0],
            input_,
            prev_op_grad_output_quantizer,
            None,
            alpha=self.basic_ops[1].scale,
            out=basic_op_extra_inputs[2][0].detach(),
        )
        return output, [() for _ in self.basic_ops]

    @staticmethod
    def fuse_forward_ops(
        ops: list[FusibleOperation], *, recipe: Recipe | None = None, **unused: Any
    ) -> list[FusibleOperation]:
        """``ops`` with this fusion where it is possible."""

        def make(linear: BasicLinear, scale: ConstantScale, add: AddExtraInput) -> Any:
            # What follows a product under `row` is a sum over ranks.
            if linear.tensor_parallel_mode == "row" or not add._in_place:
                return None
            return ForwardLinearScaleAdd(linear=linear, scale=scale, add=add)

        return replace_runs(ops, (BasicLinear, ConstantScale, AddExtraInput), make)
