"""Gathers and scatters of whole tensors, for a backend that wants equal shapes.

NCCL looks at numbers of elements only. gloo (torch 2.13) cuts the longer tensor along its first
dimension and refuses parts whose shape is not the shorter one's; a sum that is scattered into
scalars ends the process. Flat views of both are the same memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist

from accel_bridge.device._context import Context

#: Functions -> (their output, their input).
_TENSORS: Final = {
    "all_gather_into_tensor": ("output_tensor", "input_tensor"),
    "all_gather_single": ("output_tensor", "input_tensor"),
    "reduce_scatter_tensor": ("output", "input"),
    "reduce_scatter_single": ("output", "input"),
}


def flat_collectives(context: Context) -> None:
    """A part: what is gathered or scattered as a whole is passed on as flat views."""
    if not dist.is_available():
        return
    # Half of the names came with a later torch.
    names = [name for name in _TENSORS if hasattr(dist, name)]
    context.wrap_everywhere(dist, names, lambda name, original: _flat(original, *_TENSORS[name]))


def _flat(original: Callable[..., Any], output: str, input: str) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        arguments = bound.arguments
        tensors: tuple[torch.Tensor, torch.Tensor] = (arguments[output], arguments[input])
        if _differ(*tensors) and all(tensor.is_contiguous() for tensor in tensors):
            for name, tensor in zip((output, input), tensors, strict=True):
                arguments[name] = tensor.detach().view(-1)
        return original(*bound.args, **bound.kwargs)

    return call


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the tensors have other dimensions behind the first, or none at all."""
    return one.shape[1:] != other.shape[1:] or not (one.dim() and other.dim())
