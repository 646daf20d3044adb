"""The gradient of a gated delta layer's output norm, which all heads share, and those of experts.

Tensor-parallel ranks have heads of their own, so each has a part of the norm's gradient. Only
sequence parallelism sums the parts. Experts with other weight shards than the dense layers divide
theirs by another number of ranks than have tokens.
"""

from __future__ import annotations

from typing import Any

from accel_bridge.patches._factory import DISTRIBUTION, megatron_patch
from accel_bridge.patching import Kind, PatchContext, after
from accel_bridge.patching.host import ArgumentError

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


def _wrapped(_context: PatchContext, _result: None, ddp: Any) -> None:
    """As upstream; then gradients of experts are means over all ranks' tokens.

    Upstream divides by the ranks beside the dense layers' weight shards, and an expert's shards
    then by their own number.

    :raises ArgumentError: interleaved stages sum a shard's gradient before its last microbatch's.
    """
    config = ddp.config
    shards, own = config.gtp_weight_remat_size, config.expert_gtp_weight_remat_size
    stages = config.virtual_pipeline_model_parallel_size or 1
    if max(shards, own) > 1 and stages > 1 and ddp.ddp_config.overlap_grad_reduce:
        raise ArgumentError(
            "Interleaved stages would sum gradients of weight shards before they are complete.",
            evidence=f"--overlap-grad-reduce, {stages} stages a rank, weights in {shards} shards "
            f"and experts in {own}",
            next="remove --overlap-grad-reduce (and --overlap-param-gather)",
        )
    if not config.calculate_per_token_loss and own != shards:
        for buffer in ddp.expert_parallel_buffers:
            for one in (buffer, *buffer.buckets):
                one.gradient_scaling_factor *= own / shards


_OF_EXPERTS = megatron_patch(
    id="expert-shard-gradients",
    target="megatron.core.distributed.distributed_data_parallel:DistributedDataParallel.__init__",
    kind=Kind.WRAP,
    make=after(_wrapped),
    why="gradients of experts are divided by the dense layers' weight shards",
    removed_when="upstream divides them by the ranks that have tokens",
    loses="gradients of experts are too large or too small by the ratio of the shards",
    requires=f"{DISTRIBUTION}>=0.19",
    elsewhere="before 0.19 Megatron has no weight shards",
    uses=("self",),
)
_OF_NORMS = tuple(
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
PATCHES = (*_OF_NORMS, _OF_EXPERTS)
