"""Steps of quantized tensors that autograd sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch


class _QuantizeFunc(torch.autograd.Function):
    """Quantize; the gradient passes unchanged."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, quantize_impl: Callable[[torch.Tensor], Any]
    ) -> Any:
        return quantize_impl(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


class _IdentityFunc(torch.autograd.Function):
    """The same tensor, or one with some of its parts replaced."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, init_kwargs: dict[str, Any] | None = None) -> Any:
        ctx.input_dtype = tensor.dtype
        if init_kwargs is None:
            return tensor.detach()
        return type(tensor)(tensor.shape, tensor.dtype, **(tensor.get_metadata() | init_kwargs))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0].to(ctx.input_dtype), None


def _stride_from_shape(shape: Iterable[int]) -> list[int]:
    """Strides of a contiguous tensor."""
    strides: list[int] = []
    step = 1
    for size in reversed(list(shape)):
        strides.insert(0, step)
        step *= size
    return strides


def canonical_shape(shape: Sequence[Any], current: torch.Size) -> list[int]:
    """The sizes that a call of ``view`` asks for, with -1 computed."""
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = shape[0]
    return list(torch.empty(current, device="meta").view(tuple(shape)).shape)
