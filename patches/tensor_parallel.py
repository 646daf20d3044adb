"""Tensor parallelism of one rank: what would pass a tensor on unchanged is left out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge.patches._upstream import REQUIRES, SOURCE
from accel_bridge.patching import Kind, Patch, PatchContext


def _make(context: PatchContext) -> Callable[..., Any]:
    from megatron.core.utils import get_tensor_model_parallel_group_if_none

    upstream = context.original

    @functools.wraps(upstream)
    def region(input_: Any, group: Any = None) -> Any:
        """As upstream; among one rank the input itself."""
        group = get_tensor_model_parallel_group_if_none(group)
        if group is not None and group.size() == 1:
            return input_
        return upstream(input_, group)

    return region


def _region(name: str) -> Patch:
    return Patch(
        id=f"one-rank-{name.replace('_', '-')}",
        target=f"megatron.core.tensor_parallel.mappings:{name}_tensor_model_parallel_region",
        kind=Kind.WRAP,
        make=_make,
        why="without tensor parallelism it is an autograd node that does nothing, twice a layer "
        "and in each direction",
        upstream=f"{SOURCE}/core/tensor_parallel/mappings.py",
        removed_when="upstream returns the input when the group has one rank",
        loses="the host's time for it, which small models wait for",
        requires=REQUIRES,
        parameters=("input_", "group"),
    )


PATCHES = (_region("copy_to"), _region("reduce_from"))
