"""Backward pass of RMSNorm, added to an extra output's gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...quantization import Recipe
from .._common import maybe_dequantize
from ..basic import MakeExtraOutput, RMSNorm
from ..op import FusedOperation, FusibleOperation, Gradients, OperationContext
from ._window import replace_runs


class BackwardAddRMSNorm(FusedOperation):
    """Backward pass of RMSNorm, added to an extra output's gradient."""

    def __init__(self, *, add: MakeExtraOutput, rmsnorm: RMSNorm) -> None:
        super().__init__([add, rmsnorm])

    def fuser_backward(
        self,
        basic_op_ctxs: list[OperationContext],
        grad_output: torch.Tensor,
        *,
        basic_op_grad_extra_outputs: list[tuple[torch.Tensor, ...]],
    ) -> tuple[torch.Tensor | None, Iterable[Gradients], Iterable[Gradients]]:
        """The sum is made in the memory of the norm's gradient."""
        norm: RMSNorm = self.basic_ops[1]
        dtype = basic_op_ctxs[1].dtype
        dx, grads = norm.wide_backward(basic_op_ctxs[1], grad_output)
        dx += maybe_dequantize(basic_op_grad_extra_outputs[0][0], dtype)
        return dx.to(dtype), [(), grads], [(), ()]

    @staticmethod
    def fuse_backward_ops(
        ops: list[FusibleOperation], *, recipe: Recipe | None = None, **unused: Any
    ) -> list[FusibleOperation]:
        """``ops`` with this fusion where it is possible."""

        def make(add: MakeExtraOutput, norm: RMSNorm) -> FusibleOperation | None:
            return None if add._in_place else BackwardAddRMSNorm(add=add, rmsnorm=norm)

        return replace_runs(ops, (MakeExtraOutput, RMSNorm), make)
