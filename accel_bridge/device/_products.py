"""Matrix products of float16 tensors on a device that is slow at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from accel_bridge.device._context import Context, Part

#: Functions whose first two tensors are multiplied: owner, name.
PRODUCTS: Final = (
    (torch, "matmul"),
    (torch, "bmm"),
    (torch.Tensor, "matmul"),
    (torch.Tensor, "__matmul__"),
    (torch.Tensor, "bmm"),
    (torch.nn.functional, "linear"),
)


def float16_products_in(wide: torch.dtype) -> Part:
    """A part that computes float16 products in a wider dtype.

    The result is rounded to float16 once, as hardware with float32 accumulators does.
    """

    def redirect(context: Context) -> None:
        for owner, name in PRODUCTS:
            context.wrap(owner, name, lambda original: _widened(original, wide))

    return redirect


def _widened(original: Callable[..., torch.Tensor], wide: torch.dtype) -> Callable[..., Any]:
    def product(*tensors: Any, **options: Any) -> Any:
        # Options (out=, bias=) are rare; torch itself handles such calls.
        if not options and all(_is_half(tensor) for tensor in tensors):
            widened = (None if tensor is None else tensor.to(wide) for tensor in tensors)
            return original(*widened).to(torch.float16)
        return original(*tensors, **options)

    return product


def _is_half(tensor: Any) -> bool:
    """A float16 tensor, or the None of a missing bias."""
    return tensor is None or getattr(tensor, "dtype", None) is torch.float16
