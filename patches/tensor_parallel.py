"""Tensor parallelism with one rank: operations that would pass a tensor unchanged are left out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, Patch, PatchContext


def _make(context: PatchContext) -> Callable[..., Any]:
    from megatron.core.utils import get_tensor_model_parallel_group_if_none

    upstream = context.original
    tensor, ranks = context.argument("input_"), context.argument("group")

    @functools.wraps(upstream)
    def region(*args: Any, **kwargs: Any) -> Any:
        """As upstream; with one rank the input itself."""
        group = get_tensor_model_parallel_group_if_none(ranks.get(args, kwargs))
        if group is not None and group.size() == 1:
            return tensor.get(args, kwargs)
        return upstream(*args, **kwargs)

    return region


def _region(name: str) -> Patch:
    return megatron_patch(
        id=f"one-rank-{name.replace('_', '-')}",
        target=f"megatron.core.tensor_parallel.mappings:{name}_tensor_model_parallel_region",
        kind=Kind.WRAP,
        make=_make,
        why="without tensor parallelism it is an autograd node that does nothing, twice per layer "
        "and in each direction",
        removed_when="upstream returns the input when the group has one rank",
        loses="the host's time for it, which small models wait for",
        requires="megatron-core>=0.14",
        elsewhere="it only saves time",
        uses=("input_", "group"),
    )


PATCHES = (_region("copy_to"), _region("reduce_from"))
