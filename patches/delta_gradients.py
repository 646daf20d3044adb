"""The gradient of a gated delta layer's output norm, which all heads share.

Tensor-parallel ranks have heads of their own, so each has a part of that gradient. Only sequence
parallelism sums the parts.
"""

from __future__ import annotations

from typing import Any

from accel_bridge.patches._factory import DISTRIBUTION, megatron_patch
from accel_bridge.patching import Kind, PatchContext, after

_NAME = "accel_bridge_summed"


def _init(_context: PatchContext, _result: None, layer: Any) -> None:
    """As upstream; then every gradient of the norm is that of all ranks' heads."""
    config = layer.config
    if config.tensor_model_parallel_size > 1 and not config.sequence_parallel:
        layer.register_forward_pre_hook(_follow)


def _follow(layer: Any, _args: Any) -> None:
    """Before a step: a weight is another one once its model was moved to a device or sharded."""
    import torch

    group = layer.pg_collection.tp

    def summed(gradient: torch.Tensor) -> torch.Tensor:
        whole = gradient.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(whole, group=group)
        return whole

    for weight in layer.out_norm.parameters():
        if weight.requires_grad and not hasattr(weight, _NAME):
            weight.register_hook(summed)
            setattr(weight, _NAME, True)


PATCHES = tuple(
    megatron_patch(
        id="delta-gradients",
        target=f"megatron.core.ssm.gated_delta_net{target}.__init__",
        kind=Kind.WRAP,
        make=after(_init),
        why="all heads share the output norm; nothing sums the gradients of tensor-parallel ranks",
        removed_when="upstream sums that gradient without sequence parallelism",
        loses="gated delta nets train with wrong gradients, and with other weights on each rank, "
        "with tensor but without sequence parallelism",
        requires=f"{DISTRIBUTION}{versions}",
        elsewhere="before 0.16 Megatron has no such layer",
        uses=("self",),
    )
    for target, versions in ((":GatedDeltaNet", ">=0.16,<0.19"), (".common:_GDNBase", ">=0.19"))
)
