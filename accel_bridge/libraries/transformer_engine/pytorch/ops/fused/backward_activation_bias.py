"""Backward pass of a bias and an activation, whose gradient is quantized for what is before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...quantization import Recipe
from .._common import maybe_dequantize
from ..basic import GELU, Bias, ReLU
from ..op import FusedOperation, FusibleOperation, Gradients, OperationContext
from ._window import replace_runs


class BackwardActivationBias(FusedOperation):
    """Backward pass of a bias and an activation, whose gradient is quantized for what is before."""

    def __init__(self, *, bias: Bias, activation: GELU | ReLU) -> None:
        super().__init__([bias, activation])

    def fuser_backward(
        self,
        basic_op_ctxs: list[OperationContext],
        grad_output: torch.Tensor,
        *,
        basic_op_grad_extra_outputs: list[tuple[torch.Tensor, ...]],
    ) -> tuple[torch.Tensor | None, Iterable[Gradients], Iterable[Gradients]]:
        """:raises RuntimeError: nothing before the bias quantizes gradients."""
        quantizer = basic_op_ctxs[0].grad_input_quantizer
        if quantizer is None:
            raise RuntimeError(
                "BackwardActivationBias requires previous op's grad output quantizer, "
                "but Bias context has no quantizer"
            )
        # The bias has no quantizers, so the activation's gradient is not quantized.
        grad, _ = self.basic_ops[1].op_backward(basic_op_ctxs[1], grad_output)
        dy = maybe_dequantize(grad)
        db = dy.sum(tuple(range(dy.dim() - 1))) if dy.dim() > 1 else dy
        return quantizer(dy), [(db,), ()], [(), ()]

    @staticmethod
    def fuse_backward_ops(
        ops: list[FusibleOperation], *, recipe: Recipe | None = None, **unused: Any
    ) -> list[FusibleOperation]:
        """``ops`` with this fusion where it is possible."""

        if recipe is None:
            return ops

        def make(bias: Bias, activation: Any) -> FusibleOperation | None:
            place = ops.index(bias)
            before = ops[place - 1] if place else None
            if before is None or before.get_grad_output_quantizer() is None:
                return None
            return BackwardActivationBias(bias=bias, activation=activation)

        return replace_runs(ops, (Bias, (GELU, ReLU)), make)
