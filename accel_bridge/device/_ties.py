"""The largest values of a tensor, with ties decided as CUDA decides them.

Router scores in bfloat16 are often equal. Of equal values CUDA's ``topk`` takes the first ones, the
host's takes any: tokens would go to other experts than on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from accel_bridge.device._context import Context

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
