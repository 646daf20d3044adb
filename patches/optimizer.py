"""Main parameters in float32 are the model's own, which require gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext


def _make(context: PatchContext) -> Callable[..., None]:
    import torch

    upstream = context.original

    @functools.wraps(upstream)
    def _set_main_param_and_optimizer_states(*args: Any, **kwargs: Any) -> None:
        """As upstream, without recording its copies for autograd."""
        with torch.no_grad():
            upstream(*args, **kwargs)

    return _set_main_param_and_optimizer_states


PATCHES = (
    megatron_patch(
        id="optimizer-resume",
        target="megatron.core.optimizer.distrib_optimizer:"
        "DistributedOptimizer._set_main_param_and_optimizer_states",
        kind=Kind.WRAP,
        make=_make,
        why="it copies into parameters that require gradients when training is in float32",
        removed_when="upstream copies loaded states under torch.no_grad",
        loses="a float32 run with --use-distributed-optimizer cannot be resumed",
    ),
)
