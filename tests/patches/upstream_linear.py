"""Megatron's linear function with gradient accumulation fusion, in short, under our patch."""

from __future__ import annotations

from typing import Any

import torch
from patched_function import patched

from accel_bridge.kernels import WEIGHT_GRADIENT
from accel_bridge.patches.tensor_parallel import PATCHES


class _Upstream(torch.autograd.Function):
    """What ``LinearWithGradAccumulationAndAsyncCommunication`` does on one rank."""

    @staticmethod
    def forward(ctx: Any, input: Any, weight: Any, bias: Any, fusion: bool) -> torch.Tensor:
        ctx.save_for_backward(input, weight)
        ctx.gradient_accumulation_fusion, ctx.biased = fusion, bias is not None
        return torch.nn.functional.linear(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        input, weight = ctx.saved_tensors
        rows = gradients[0].reshape(-1, gradients[0].shape[-1])
        bias = rows.sum(0) if ctx.biased else None
        if not ctx.gradient_accumulation_fusion:
            return gradients[0] @ weight, rows.t() @ input.reshape(len(rows), -1), bias, None
        WEIGHT_GRADIENT.reference(input, gradients[0], weight.main_grad)
        placeholder = None
        if hasattr(weight, "grad_added_to_main_grad"):
            make = torch.zeros if weight.zero_out_wgrad else torch.empty
            placeholder = make(weight.main_grad.shape, dtype=input.dtype)
            weight.grad_added_to_main_grad = True
        return gradients[0] @ weight, placeholder, bias, None


class _Patched(_Upstream):
    """The same under the patch."""


_Patched.backward = patched(  # type: ignore[method-assign]
    PATCHES, _Upstream.backward, "weight-gradient", owner=_Patched
)


def linear(x: Any, weight: Any, bias: Any = None, fusion: bool = True) -> torch.Tensor:
    """x [.., k] times weight [m, k], plus bias [m]: [.., m]."""
    made: torch.Tensor = _Patched.apply(x, weight, bias, fusion)  # type: ignore[no-untyped-call]
    return made
