"""Reductions of float64, for a communication backend that does not support them.

Every rank's bytes are gathered and reduced on the host, so that the result is exact: a
detour over float32 would round a time in seconds to minutes. Megatron reduces a handful of numbers
in float64 (start times, counters), never anything large.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist

from accel_bridge.device._context import Context

#: By the op's name: ReduceOp objects cannot be keys.
_REDUCE: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "SUM": lambda all_ranks: all_ranks.sum(0),
    "AVG": lambda all_ranks: all_ranks.mean(0),
    "PRODUCT": lambda all_ranks: all_ranks.prod(0),
    "MIN": lambda all_ranks: all_ranks.amin(0),
    "MAX": lambda all_ranks: all_ranks.amax(0),
}


class _Done:
    """A finished handle, where an asynchronous call's handle is expected."""

    def wait(self, timeout: object = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def wide_reductions(context: Context) -> None:
    """A part for a communication backend without float64: makes ``all_reduce`` accept it."""
    if not dist.is_available():
        return
    context.wrap_everywhere(
        dist, ("all_reduce",), lambda name, original: _exact(original, context.spec.type)
    )


def _exact(original: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        tensor: torch.Tensor = bound.arguments["tensor"]
        if tensor.dtype != torch.float64 or tensor.device.type != device_type:
            return original(*args, **kwargs)
        with torch.no_grad():
            _reduce_on_host(tensor, bound.arguments["op"], bound.arguments["group"])
        return _Done() if bound.arguments["async_op"] else None

    return call


def _reduce_on_host(tensor: torch.Tensor, op: Any, group: Any) -> None:
    """``tensor``, reduced over the ranks of ``group``, in place.

    :raises ValueError: an op that has no meaning for float64.
    """
    name = _name(op)
    if name not in _REDUCE:
        raise ValueError(f"ReduceOp.{name} is not defined for float64")
    size = dist.get_world_size(group)
    if size < 1:  # this rank is not in the group
        return
    mine = tensor.detach().cpu().contiguous().view(-1).view(torch.int32).to(tensor.device)
    gathered = torch.empty(size * mine.numel(), dtype=torch.int32, device=tensor.device)
    dist.all_gather_into_tensor(gathered, mine, group=group)
    all_ranks = gathered.cpu().view(torch.float64).view(size, *tensor.shape)
    tensor.copy_(_REDUCE[name](all_ranks))


def _name(op: Any) -> str:
    """``SUM`` of ``ReduceOp.SUM`` or of ``ReduceOp(SUM)``."""
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        if op == getattr(dist.ReduceOp, name):
            return name
    return str(op)
