"""Functions of torch.nn.functional that differ on the device from what PyTorch documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn import functional

from accel_bridge.device._context import Context, Part


def functions(**own: Callable[..., torch.Tensor]) -> Part:
    """A part that sends tensors on the device through ``own`` functions, by their names."""

    def redirect(context: Context) -> None:
        for name, function in own.items():
            context.wrap(functional, name, _on_device(function, context.spec.type))

    return redirect


def _on_device(
    own: Callable[..., torch.Tensor], device_type: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            chosen = own if input.device.type == device_type else original
            return chosen(input, *args, **kwargs)

        return call

    return make


# Matrix products of float16 tensors on a device that is slow at them.

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


# The largest values of a tensor, with ties decided as CUDA decides them.
#
# Router scores in bfloat16 are often equal. Of equal values CUDA's ``topk`` takes the first ones,
# the host's takes any: tokens would go to other experts than on a GPU.

#: Longer rows, as of a vocabulary, are too slow to sort.
LONGEST: Final = 16_384


def first_of_equals(context: Context) -> None:
    """A part for the host: ``topk`` takes the first of equal values."""
    for owner in (torch, torch.Tensor):
        context.wrap(owner, "topk", _first)


def _first(original: Callable[..., Any]) -> Callable[..., Any]:
    def topk(
        input: torch.Tensor,
        k: int,
        dim: int = -1,
        largest: bool = True,
        sorted: bool = True,
        **options: Any,
    ) -> Any:
        # A tracer's proxies are no tensors.
        if options or type(k) is not int or not isinstance(input, torch.Tensor):
            return original(input, k, dim, largest, sorted, **options)
        plain = input.dim() > 0 and input.device.type == "cpu"
        if not plain or not 0 < k <= input.shape[dim] <= LONGEST:
            return original(input, k, dim, largest, sorted, **options)
        values, indices = torch.sort(input, dim=dim, descending=largest, stable=True)
        first, places = (one.narrow(dim, 0, k).contiguous() for one in (values, indices))
        return torch.return_types.topk((first, places))

    return topk
