"""Activation functions."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.nn import functional

from accel_bridge.kernels import GEGLU as GEGLU_CONTRACT
from accel_bridge.kernels import Contract, compute_dtype
from accel_bridge.kernels.active import kernel

from ...quantized_tensor import Quantizer
from ...utils import clear_tensor_data
from .. import _tape
from .._common import FLOATS, maybe_autocast_dtype, maybe_dequantize, maybe_quantize
from .._fp8_input import fp8_input
from ..op import BasicOperation, OperationContext


def wide(function: Callable[..., torch.Tensor], x: torch.Tensor, *rest: Any) -> torch.Tensor:
    """``function(x, ...)`` in float32, rounded once."""
    result: torch.Tensor = function(x.to(compute_dtype(x)), *rest)
    return result.to(x.dtype)


def contract(contract: Contract[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The backend's kernel; a reference runs in float32, as Transformer Engine's kernels do."""
    chosen = kernel(contract)
    result: torch.Tensor = wide(chosen, x) if chosen.is_reference else chosen(x)
    return result


class _ActivationOperation(BasicOperation, metaclass=ABCMeta):
    """An activation function.

    Those with a gate apply it to the first half of the last dimension, and multiply the second
    half by the result.

    :param cache_quantized_input: keep the input in FP8 for the backward pass.
    """

    #: Recorded in the forward pass: its backward pass needs little besides the input.
    records: ClassVar[bool] = False

    def __init__(self, *, cache_quantized_input: bool = False) -> None:
        super().__init__()
        self.cache_quantized_input = cache_quantized_input

    @abstractmethod
    def activation(self, x: torch.Tensor) -> torch.Tensor:
        """The function, differentiable by autograd: [..., n] -> [..., n], or [..., n / 2]."""

    def op_forward(
        self,
        ctx: OperationContext,
        input_: torch.Tensor,
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """:raises RuntimeError: a dtype other than float32, float16 and bfloat16."""
        dtype = maybe_autocast_dtype(device_type=input_.device.type, default_dtype=input_.dtype)
        if dtype not in FLOATS:
            raise RuntimeError(f"Unsupported dtype ({dtype})")
        x = maybe_dequantize(input_, dtype)
        keep = self.cache_quantized_input
        y = _tape.forward(ctx, self.activation, x, records=self.records and not keep)
        if ctx.requires_grad:
            if keep:
                ctx.save_for_backward(fp8_input(x))
            ctx.dtype = dtype
            ctx.prev_op_grad_output_quantizer = prev_op_grad_output_quantizer
        return maybe_quantize(y, next_op_input_quantizer)

    def op_backward(
        self, ctx: OperationContext, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[()]]:
        """The gradient of the input; there are no parameters."""
        saved = ctx.saved_tensors or ()
        dy = maybe_dequantize(grad_output, ctx.dtype)
        (dx,) = _tape.backward(
            ctx, dy, self.activation, lambda: (maybe_dequantize(saved[0], ctx.dtype),)
        )
        clear_tensor_data(*saved)
        return maybe_quantize(dx, self._grad_quantizer(ctx)), ()

    def _grad_quantizer(self, ctx: OperationContext) -> Quantizer | None:
        quantizer: Quantizer | None = ctx.prev_op_grad_output_quantizer
        return quantizer


class GELU(_ActivationOperation):
    """Gaussian error linear unit, by its tanh approximation."""

    records = True

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        """``gelu(x)``."""
        return functional.gelu(x, approximate="tanh")


class GLU(_ActivationOperation):
    """Gated linear unit."""

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        """``sigmoid(a) * b``."""
        return wide(lambda x: _gated(torch.sigmoid, x), x)


class GEGLU(_ActivationOperation):
    """Linear unit with a GELU gate, by its tanh approximation."""

    records = True

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        """``gelu(a) * b``."""
        return contract(GEGLU_CONTRACT, x)


class QGELU(_ActivationOperation):
    """Quick GELU."""

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        """``x * sigmoid(1.702 * x)``."""
        return wide(_quick_gelu, x)


class QGEGLU(_ActivationOperation):
    """Linear unit with a quick GELU gate."""

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        """``quick_gelu(a) * b``."""
        return wide(lambda x: _gated(_quick_gelu, x), x)


class ReLU(_ActivationOperation):
    """Rectified linear unit."""

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        """``max(x, 0)``."""
        return functional.relu(x)


class ReGLU(_ActivationOperation):
    """Linear unit with a rectified gate."""

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        """``max(a, 0) * b``."""
        return wide(lambda x: _gated(functional.relu, x), x)


class SReLU(_ActivationOperation):
    """Squared rectified linear unit."""

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        """``max(x, 0)^2``."""
        return wide(_squared_relu, x)


class SReGLU(_ActivationOperation):
    """Linear unit with a squared rectified gate."""

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        """``max(a, 0)^2 * b``."""
        return wide(lambda x: _gated(_squared_relu, x), x)


class SiLU(_ActivationOperation):
    """Sigmoid linear unit."""

    records = True

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        """``x * sigmoid(x)``."""
        return functional.silu(x)


def _quick_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


def _squared_relu(x: torch.Tensor) -> torch.Tensor:
    return functional.relu(x).square()


def _gated(gate: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return gate(first) * second
