"""Backward pass of a scaled product."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...quantization import Recipe
from ..basic import BasicLinear, ConstantScale
from ..op import FusedOperation, FusibleOperation, Gradients, OperationContext
from ._window import replace_runs


class BackwardLinearScale(FusedOperation):
    """Backward pass of a scaled product."""

    def __init__(self, *, scale: ConstantScale, linear: BasicLinear) -> None:
        super().__init__([linear, scale])

    def fuser_backward(
        self,
        basic_op_ctxs: list[OperationContext],
        grad_output: torch.Tensor,
        *,
        basic_op_grad_extra_outputs: list[tuple[torch.Tensor, ...]],
    ) -> tuple[torch.Tensor | None, Iterable[Gradients], Iterable[Gradients]]:
        """Both products of gradients are scaled."""
        linear: BasicLinear = self.basic_ops[0]
        dx, dw = linear.compute_gradients(
            basic_op_ctxs[0], grad_output, alpha=self.basic_ops[1].scale
        )
        return dx, [(dw,), ()], [(), ()]

    @staticmethod
    def fuse_backward_ops(
        ops: list[FusibleOperation], *, recipe: Recipe | None = None, **unused: Any
    ) -> list[FusibleOperation]:
        """``ops`` with this fusion where it is possible."""

        def make(linear: BasicLinear, scale: ConstantScale) -> FusibleOperation | None:
            # What follows a product of gradients under `column` is a sum over ranks.
            if linear.tensor_parallel_mode == "column":
                return None
            return BackwardLinearScale(scale=scale, linear=linear)

        return replace_runs(ops, (BasicLinear, ConstantScale), make)
