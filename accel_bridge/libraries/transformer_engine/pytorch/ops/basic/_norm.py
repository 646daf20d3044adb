"""What LayerNorm and RMSNorm have in common."""

from __future__ import annotations

import os
from collections.abc import Iterable
from math import prod
from typing import Any, ClassVar

import torch

from accel_bridge.kernels import Contract, compute_dtype
from accel_bridge.kernels.active import kernel

from ...quantized_tensor import Quantizer
from ...utils import canonicalize_device, canonicalize_dtype
from .. import _tape
from .._common import maybe_autocast_dtype, maybe_dequantize, maybe_quantize
from ..op import BasicOperation, Gradients, OperationContext

_STAGES = {"forward": "FWD", "backward": "BWD", "inference": "INF"}


def _margins(sm_margin: int | dict[str, int]) -> dict[str, int]:
    """Multiprocessors to leave alone, by stage. Only passed on: no kernel here needs it."""

    def margin(stage: str, short: str) -> int:
        variable = f"NVTE_{short}_LAYERNORM_SM_MARGIN"
        if isinstance(sm_margin, dict):
            return sm_margin.get(stage, int(os.getenv(variable, "0")))
        return int(os.getenv(variable, str(sm_margin)))

    return {stage: margin(stage, short) for stage, short in _STAGES.items()}


class Norm(BasicOperation):
    """A normalization over the last dimensions, with parameters of their shape.

    :param normalized_shape: those dimensions.
    :param eps: added under the root.
    :param device: of the parameters; ``meta`` leaves them to the first forward pass.
    :param dtype: of the parameters, and of the computation.
    :param zero_centered_gamma: the factor is ``1 + weight``.
    :param sm_margin: accepted for Transformer Engine's sake.
    """

    #: Names and order of the parameters.
    _PARAMETERS: ClassVar[tuple[str, ...]] = ("weight",)
    _CONTRACT: ClassVar[Contract[..., torch.Tensor]]

    weight: torch.nn.Parameter

    def __init__(
        self,
        normalized_shape: Iterable[int] | int,
        *,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        sm_margin: int | dict[str, int] = 0,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.zero_centered_gamma = zero_centered_gamma
        shape: tuple[int, ...]
        if isinstance(normalized_shape, Iterable):
            shape = tuple(normalized_shape)
        else:
            shape = (normalized_shape,)
        place = canonicalize_device(device)
        for name in self._PARAMETERS:
            values = torch.empty(shape, device=place, dtype=canonicalize_dtype(dtype))
            self.register_parameter(name, torch.nn.Parameter(values))
        if place.type != "meta":
            self.reset_parameters()
        self._sm_margins = _margins(sm_margin)

    def _parameter(self, name: str) -> torch.nn.Parameter:
        parameter: torch.nn.Parameter = getattr(self, name)
        return parameter

    def reset_parameters(self) -> None:
        """Make the normalization one without effect, on the default device if on ``meta``."""
        for name in self._PARAMETERS:
            old = self._parameter(name)
            device = canonicalize_device(None) if old.device.type == "meta" else old.device
            one = name == "weight" and not self.zero_centered_gamma
            values = torch.full_like(old.detach(), 1.0 if one else 0.0, device=device)
            if device == old.device:
                old.data.copy_(values)
            else:
                setattr(self, name, torch.nn.Parameter(values))

    def pre_first_fuser_forward(self) -> None:
        """Make parameters that are still on ``meta``."""
        super().pre_first_fuser_forward()
        if any(self._parameter(name).device.type == "meta" for name in self._PARAMETERS):
            self.reset_parameters()

    def normalize(self, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        """The function: x [rows, h], parameters [h] -> [rows, h], in their dtype."""
        normal = kernel(self._CONTRACT)(
            x, *parameters, eps=self.eps, zero_centered_gamma=self.zero_centered_gamma
        )
        return normal.to(parameters[0].dtype)

    def _flat(self, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        parameters = [self._parameter(name) for name in self._PARAMETERS]
        return tuple(maybe_dequantize(one, dtype).reshape(-1) for one in parameters)

    def op_forward(
        self,
        ctx: OperationContext,
        input_: torch.Tensor,
        prev_op_grad_output_quantizer: Quantizer | None,
        next_op_input_quantizer: Quantizer | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """:raises ValueError: the input's last dimensions are not the parameters'."""
        shape, last = tuple(input_.shape), tuple(self.weight.shape)
        if len(shape) < len(last) or shape[-len(last) :] != last:
            raise ValueError(
                f"Input tensor (shape={shape}) and weight tensor (shape={last}) are not compatible"
            )
        dtype = maybe_autocast_dtype(
            device_type=self.weight.device.type, default_dtype=self.weight.dtype
        )
        x = maybe_dequantize(input_, dtype).view(-1, prod(last))
        if kernel(self._CONTRACT).is_reference:
            # It keeps a wide copy anyway; its gradient is wide then, and rounded once.
            x = x.to(compute_dtype(x))
        y = _tape.forward(ctx, self.normalize, x, *self._flat(dtype), records=True)
        ctx.dtype = dtype
        return maybe_quantize(y.view(shape), next_op_input_quantizer)

    def wide_backward(
        self, ctx: OperationContext, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Gradients of the input, not rounded yet, and of the parameters."""
        tape: _tape.Tape | None = getattr(ctx, "tape", None)
        saved = tape.inputs if tape else (*(ctx.saved_tensors or ()), *self._flat(ctx.dtype))
        wide = compute_dtype(saved[0])
        if saved[0].dtype == wide:
            return self._backward(ctx, grad_output)
        # A kernel rounds its gradients to the dtype of what it was given.
        tape, ctx.tape = _tape.Tape(self.normalize, *(one.to(wide) for one in saved)), None
        dx, *grads = tape.gradients(self._rows(grad_output, wide))
        narrow = [grad.to(ctx.dtype) for grad in grads]
        return self._shaped(dx, narrow, grad_output)

    def _rows(self, grad_output: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return maybe_dequantize(grad_output, dtype).view(-1, self.weight.numel())

    def _shaped(
        self, dx: torch.Tensor, grads: list[torch.Tensor], like: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        shape = self.weight.shape
        return dx.view(like.shape), [grad.view(shape) for grad in grads]

    def _backward(
        self, ctx: OperationContext, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        saved = ctx.saved_tensors or ()
        dx, *grads = _tape.backward(
            ctx,
            self._rows(grad_output, ctx.dtype),
            self.normalize,
            lambda: (saved[0], *self._flat(ctx.dtype)),
        )
        return self._shaped(dx, grads, grad_output)

    def op_backward(
        self, ctx: OperationContext, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, Gradients]:
        """Gradients of the input and of the parameters."""
        dx, grads = self._backward(ctx, grad_output)
        return dx.to(ctx.dtype), grads
