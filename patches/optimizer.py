"""Main parameters in float32 are the model's own, which require gradients."""

from __future__ import annotations

from collections.abc import Callable

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext


def _make(context: PatchContext) -> Callable[..., None]:
    """As upstream, without recording its copies for autograd."""
    import torch

    unrecorded: Callable[..., None] = torch.no_grad()(context.original)
    return unrecorded


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
