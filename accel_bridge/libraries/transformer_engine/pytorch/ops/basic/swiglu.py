"""SwiGLU and its variants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from accel_bridge.kernels import SWIGLU

from ...quantized_tensor import Quantizer
from ...utils import clear_tensor_data
from .. import _tape
from .._common import maybe_autocast_dtype, maybe_dequantize
from ..op import BasicOperation, Gradients, OperationContext
from ._extra_tensors import ExtraTensors
from .activation import _ActivationOperation, contract, wide


def halves_together(x: torch.Tensor, block: int | None) -> torch.Tensor:
    """All gates before all linear units.

    :param x: [..., 2 f], with blocks of gates and of linear units in turn.
    :param block: length of such a block; None if they are together already.
    """
    if block is None:
        return x
    pairs = x.reshape(-1, x.shape[-1] // (2 * block), 2, block)
    return pairs.transpose(1, 2).reshape(x.shape)


class SwiGLU(_ActivationOperation):
    """``silu(a) * b`` of the halves a and b of the last dimension.

    :param cache_quantized_input: keep the input in FP8 for the backward pass.
    :param glu_interleave_size: the input has blocks of this length of a and of b in turn.
    """

    def __init__(
        self, *, cache_quantized_input: bool = False, glu_interleave_size: int | None = None
    ) -> None:
        super().__init__(cache_quantized_input=cache_quantized_input)
        self.glu_interleave_size = glu_interleave_size

    @property
    def records(self) -> bool:  # type: ignore[override]
        """Not when the kernel's input would be a second copy."""
        return self.glu_interleave_size is None

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        """``silu(a) * b``."""
        return contract(SWIGLU, halves_together(x, self.glu_interleave_size))

    def _grad_quantizer(self, ctx: OperationContext) -> Quantizer | None:
        return super()._grad_quantizer(ctx) if self.glu_interleave_size is None else None


class ClampedSwiGLU(_ActivationOperation):
    """``a * sigmoid(alpha * a) * (b + 1)`` of clamped halves a and b, as in GPT-OSS.

    :param limit: a is at most this; b is within plus and minus this.
    :param cache_quantized_input: keep the input in FP8 for the backward pass.
    :param glu_interleave_size: the input has blocks of this length of a and of b in turn.
    """

    def __init__(
        self,
        *,
        limit: float = 7.0,
        alpha: float = 1.702,
        cache_quantized_input: bool = False,
        glu_interleave_size: int | None = None,
    ) -> None:
        super().__init__(cache_quantized_input=cache_quantized_input)
        self.limit = limit
        self.alpha = alpha
        self.glu_interleave_size = glu_interleave_size

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        """``a * sigmoid(alpha * a) * (b + 1)``."""
        return wide(self._clamped, halves_together(x, self.glu_interleave_size))

    def _clamped(self, x: torch.Tensor) -> torch.Tensor:
        gate, linear = x.chunk(2, dim=-1)
        gate = gate.clamp(max=self.limit)
        linear = linear.clamp(min=-self.limit, max=self.limit)
        return gate * torch.sigmoid(self.alpha * gate) * (linear + 1)

    def _grad_quantizer(self, ctx: OperationContext) -> Quantizer | None:
        return super()._grad_quantizer(ctx) if self.glu_interleave_size is None else None


class ScaledSwiGLU(ExtraTensors, BasicOperation):
    """SwiGLU, with each row multiplied by an entry of an extra input.

    :param glu_interleave_size: the input has blocks of this length of a and of b in turn.
    """

    num_extra_inputs: int = 1

    def __init__(self, glu_interleave_size: int | None = None) -> None:
        super().__init__()
        self.glu_interleave_size = glu_interleave_size

    def _scaled(self, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        active = contract(SWIGLU, halves_together(x, self.glu_interleave_size))
        return active * scales.unsqueeze(-1)

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
        """:param input_: [..., 2 f]. :param basic_op_extra_inputs: scales [...]."""
        ctx, scales = basic_op_ctxs[0], basic_op_extra_inputs[0][0]
        dtype = maybe_autocast_dtype(device_type=scales.device.type, default_dtype=input_.dtype)
        x = maybe_dequantize(input_, dtype)
        scales = maybe_dequantize(scales, dtype)
        # Not recorded: the product with the scales would keep another tensor.
        y = _tape.forward(ctx, self._scaled, x, scales, records=False)
        if ctx.requires_grad:
            ctx.save_for_backward(x, scales)
            ctx.dtype = dtype
        return y, [()]

    def fuser_backward(
        self,
        basic_op_ctxs: list[OperationContext],
        grad_output: torch.Tensor,
        *,
        basic_op_grad_extra_outputs: list[tuple[torch.Tensor, ...]],
    ) -> tuple[torch.Tensor, Iterable[Gradients], Iterable[Gradients]]:
        """Gradients of the input and of the scales."""
        ctx = basic_op_ctxs[0]
        x, scales = ctx.saved_tensors or ()
        dy = maybe_dequantize(grad_output, ctx.dtype)
        dx, grad_scales = _tape.backward(ctx, dy, self._scaled, lambda: (x, scales))
        clear_tensor_data(x)
        return dx, [()], [(grad_scales,)]
