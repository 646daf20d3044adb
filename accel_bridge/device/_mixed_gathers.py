"""Gathers of several dtypes in one coalesced call, for a backend that mixes them up.

gloo packs what a coalesced call gathers into one buffer of the first tensor's dtype: FP8 weights
(uint8) beside bfloat16 ones come back as other numbers, without an error (torch 2.13).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import torch.distributed as dist

from accel_bridge.device._context import Context

_GATHERS: Final = ("all_gather_into_tensor", "all_gather_single")


def mixed_gathers(context: Context) -> None:
    """A part: gathers of a second dtype are made at once, not with the coalesced ones."""
    if not dist.is_available():
        return
    # The second name came with a later torch.
    names = [name for name in _GATHERS if hasattr(dist, name)]
    context.wrap_everywhere(dist, names, lambda name, original: _apart(original))


def _apart(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)
    c10d = dist.distributed_c10d

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        arguments = bound.arguments
        waiting: Any = c10d._world.pg_coalesce_state
        group = arguments.get("group") or (c10d._get_default_group() if waiting else None)
        others = waiting.get(group) if waiting else None
        dtype = arguments["input_tensor"].dtype
        if not others or others[0].tensor.dtype == dtype:
            return original(*args, **kwargs)
        del waiting[group]
        try:
            arguments["async_op"] = False
            return original(*bound.args, **bound.kwargs)
        finally:
            waiting[group] = others

    return call
