"""Averages and scaled sums over a group, for a communication backend that only sums.

Every value is divided, or multiplied for ``PREMUL_SUM``, before the sum, so that asynchronous and
coalesced calls need nothing afterwards. Averages of integers are left to the backend: divided
first they would be wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
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


def _factor(op: Any, group: dist.ProcessGroup | None) -> Any:
    """What every value is multiplied by before the sum; None for another reduction."""
    if op == dist.ReduceOp.AVG:
        size = dist.get_world_size(group)
        return 1.0 / size if size > 0 else None
    if op == dist.ReduceOp.PREMUL_SUM:
        return op.__getstate__()[1]  # a number or a tensor; it has no other name in Python
    return None


def _averaging(original: Callable[..., Any], summed: str, in_place: bool) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        arguments = bound.arguments
        factor = _factor(arguments.get("op"), arguments.get("group"))
        tensor: torch.Tensor = arguments[summed]
        if factor is not None and tensor.is_floating_point():
            with torch.no_grad():
                arguments[summed] = tensor.mul_(factor) if in_place else tensor * factor
            arguments["op"] = dist.ReduceOp.SUM
        return original(*bound.args, **bound.kwargs)

    return call
