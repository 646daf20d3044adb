"""Averages over a group, for a communication backend that only sums.

Every value is divided before the sum, so that asynchronous and coalesced calls need nothing
afterwards. So is that of NCCL's sums with a factor, with which FSDP scales gradients. Averages of
integers are left to the backend: divided first they would be wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist

from accel_bridge.device._context import Context

#: Functions with an ``op`` argument -> the argument that is summed. ``all_reduce`` works in place;
#: the others leave their input unchanged.
REDUCTIONS: Final = {
    "all_reduce": "tensor",
    "reduce_scatter_single": "input",
    "reduce_scatter_tensor": "input",
}
IN_PLACE: Final = frozenset({"all_reduce"})


def averages(context: Context) -> None:
    """A part for a communication backend without ``ReduceOp.AVG``: makes it work for floats."""
    if not dist.is_available():
        return
    context.wrap_everywhere(
        dist,
        REDUCTIONS,
        lambda name, original: _averaging(original, REDUCTIONS[name], name in IN_PLACE),
    )


def _averaging(original: Callable[..., Any], summed: str, in_place: bool) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        arguments = bound.arguments
        # Who has wrapped the function before may have hidden its parameters: then there is no op.
        change = _change(arguments.get("op"), arguments.get("group"))
        if change is not None and arguments[summed].is_floating_point():
            tensor: torch.Tensor = arguments[summed]
            with torch.no_grad():
                arguments[summed] = change(tensor, out=tensor if in_place else None)
            arguments["op"] = dist.ReduceOp.SUM
        return original(*bound.args, **bound.kwargs)

    return call


def _change(op: Any, group: Any) -> Callable[..., torch.Tensor] | None:
    """What an op does to values before it sums; None for the others, and outside the group."""
    size = dist.get_world_size(group) if op is not None else 0
    if size > 0 and op == dist.ReduceOp.AVG:
        return partial(torch.div, other=size)
    if size > 0 and op == getattr(dist.ReduceOp, "PREMUL_SUM", None):
        # The newest torch alone has an attribute for the factor; every pickled op names it.
        state = op.__getstate__()
        return partial(torch.mul, other=state[1]) if isinstance(state, tuple) else None
    return None
