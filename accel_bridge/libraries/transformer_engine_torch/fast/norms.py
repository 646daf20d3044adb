"""``RMSNorm.forward`` and ``LayerNorm.forward``: one kernel each way.

They are operations of Transformer Engine's fuser, which is built and run anew for every call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from accel_bridge.kernels import NORM_BACKWARD, NORM_FORWARD
from accel_bridge.kernels.active import kernel
from accel_bridge.libraries.transformer_engine_torch.fast._conditions import interferes, is_plain


class _Norm(torch.autograd.Function):
    """x [.., h], weight and bias [h] -> [.., h]."""

    @staticmethod
    def forward(
        ctx: Any, x: Any, weight: Any, bias: Any, eps: float, zero_centered: bool, centered: bool
    ) -> Any:
        rows = x.contiguous().view(-1, x.shape[-1])
        output, mean, rsigma = kernel(NORM_FORWARD)(
            rows, weight, bias, eps=eps, zero_centered_gamma=zero_centered, centered=centered
        )
        ctx.save_for_backward(rows, weight, mean, rsigma)
        ctx.zero_centered = zero_centered
        return output.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        x, weight, mean, rsigma = ctx.saved_tensors
        shape = gradients[0].shape
        of_x, of_weight, of_bias = kernel(NORM_BACKWARD)(
            gradients[0].contiguous().view(x.shape),
            x,
            weight,
            mean,
            rsigma,
            zero_centered_gamma=ctx.zero_centered,
        )
        return of_x.view(shape), of_weight, of_bias, None, None, None


def rms_norm_forward(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``RMSNorm.forward``."""
    return _forward(original, module, centered=False)


def layer_norm_forward(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``LayerNorm.forward``."""
    return _forward(original, module, centered=True)


def _forward(original: Callable[..., Any], module: Any, centered: bool) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        weight = self._parameters.get("weight")
        bias = self._parameters.get("bias")
        if (
            args
            or kwargs
            or weight is None
            or weight.dim() != 1
            or not is_plain(input, weight, bias)
            or not input.is_cuda
            or input.shape[-1] != weight.shape[0]
            or interferes()
        ):
            return original(self, input, *args, **kwargs)
        return _Norm.apply(input, weight, bias, self.eps, self.zero_centered_gamma, centered)  # type: ignore[no-untyped-call]

    return forward
