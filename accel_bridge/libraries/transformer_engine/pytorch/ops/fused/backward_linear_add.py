"""Backward pass of a product that is added to an extra output's gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...quantization import Recipe
from ..basic import BasicLinear, MakeExtraOutput
from ..op import FusedOperation, FusibleOperation, Gradients, OperationContext
from ._window import replace_runs


class BackwardLinearAdd(FusedOperation):
    """Backward pass of a product that is added to an extra output's gradient."""

    def __init__(self, *, backward_add: MakeExtraOutput, linear: BasicLinear) -> None:
        super().__init__([backward_add, linear])

    def fuser_backward(
        self,
        basic_op_ctxs: list[OperationContext],
        grad_output: torch.Tensor,
        *,
        basic_op_grad_extra_outputs: list[tuple[torch.Tensor, ...]],
    ) -> tuple[torch.Tensor | None, Iterable[Gradients], Iterable[Gradients]]:
        """In the memory of the extra output's gradient."""
        linear: BasicLinear = self.basic_ops[1]
        grad_extra = basic_op_grad_extra_outputs[0][0]
        if grad_extra.data_ptr() == grad_output.data_ptr():
            # Autograd gave both outputs one gradient; the weight's gradient needs it as it is.
            grad_extra = grad_extra.clone()
        dx, dw = linear.compute_gradients(basic_op_ctxs[1], grad_output, grad_input=grad_extra)
        return dx, [(), (dw,)], [(), ()]

    @staticmethod
    def fuse_backward_ops(
        ops: list[FusibleOperation], *, recipe: Recipe | None = None, **unused: Any
    ) -> list[FusibleOperation]:
        """``ops`` with this fusion where it is possible."""

        def make(add: MakeExtraOutput, linear: BasicLinear) -> FusibleOperation | None:
            # What follows a product of gradients under `column` is a sum over ranks.
            if linear.tensor_parallel_mode == "column" or not add._in_place:
                return None
            return BackwardLinearAdd(backward_add=add, linear=linear)

        return replace_runs(ops, (MakeExtraOutput, BasicLinear), make)
