"""Tensor parallelism: operations of one rank that would pass a tensor unchanged, sums over ranks,
the gradient of an output layer that is in ``main_grad`` already, and weights that every rank has,
or a part of, or that expert-parallel ranks have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import DISTRIBUTION, megatron_patch
from accel_bridge.patching import Kind, Patch, PatchContext, after, around
from accel_bridge.patching.host import ArgumentError


def _make_region(context: PatchContext) -> Callable[..., Any]:
    from megatron.core.utils import get_tensor_model_parallel_group_if_none

    upstream = context.original
    tensor, ranks = context.argument("input_"), context.argument("group")

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
        make=_make_region,
        why="without tensor parallelism it is an autograd node that does nothing, twice per layer "
        "and in each direction",
        removed_when="upstream returns the input when the group has one rank",
        loses="the host's time for it, which small models wait for",
        requires="megatron-core>=0.14",
        elsewhere="it only saves time",
        uses=("input_", "group"),
    )


_REGIONS = (_region("copy_to"), _region("reduce_from"))


def _reduce(_context: PatchContext, call: Callable[..., Any], tensor: Any) -> Any:
    """As upstream, which sums the memory of what it returns only if that is contiguous."""
    return call(input_=tensor.contiguous())


_REDUCE = (
    megatron_patch(
        id="strided-reduction",
        target="megatron.core.tensor_parallel.mappings:_reduce",
        requires="megatron-core>=0.12,<0.19",
        elsewhere="since 0.19 Megatron returns the sum of any tensor",
        kind=Kind.WRAP,
        make=around(_reduce),
        why="of a tensor that is not contiguous a copy is summed over the ranks, and the tensor "
        "itself is returned",
        removed_when="Megatron before 0.19 is not supported",
        loses="gradients that are views, as the rotary part of latent attention's key has, stay "
        "those of one rank, silently",
        uses=("input_",),
    ),
)


def _make_backward(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original

    @functools.wraps(upstream)
    def backward(ctx: Any, grad_output: Any) -> Any:
        """As upstream; for a gradient that was added in place, a tensor without memory."""
        from accel_bridge.libraries.main_grad import placeholder

        results = upstream(ctx, grad_output)
        if not ctx.gradient_accumulation_fusion or results[1] is None:
            return results
        weight = ctx.saved_tensors[1]
        if not getattr(weight, "grad_added_to_main_grad", False):
            return results
        return (results[0], placeholder(weight, weight.main_grad), *results[2:])

    return staticmethod(backward)


_WEIGHT_GRADIENT = (
    megatron_patch(
        id="weight-gradient",
        target="megatron.core.tensor_parallel.layers:"
        "LinearWithGradAccumulationAndAsyncCommunication.backward",
        kind=Kind.WRAP,
        make=_make_backward,
        why="with --gradient-accumulation-fusion autograd gets a tensor of the weight's size "
        "that nobody reads; a tied weight's zeros are added",
        removed_when="upstream leaves the gradient of a tied weight out when it was added in place",
        loses="memory of the output layer's size, and about 3% of a step of models whose embedding "
        "is tied to it",
    ),
)


def _duplicated(_context: PatchContext, _result: None, layer: Any, mode: str | None) -> None:
    """As upstream; what is duplicated is no part, as Megatron says itself since 0.17."""
    if mode == "duplicated":
        for parameter in layer.parameters():
            parameter.tensor_model_parallel = False


_DUPLICATED = (
    megatron_patch(
        id="duplicated-linear",
        target="megatron.core.extensions.transformer_engine:TELinear.__init__",
        requires="megatron-core>=0.12,<0.17",
        elsewhere="since 0.17 Megatron marks these weights itself",
        kind=Kind.WRAP,
        make=after(_duplicated),
        why="weights that all tensor-parallel ranks have count once for each in the gradient "
        "norm, by which gradients are clipped",
        removed_when="Megatron before 0.17 is not supported",
        loses="multi-latent attention and latent experts are clipped otherwise in tensor-parallel "
        "layouts than in one process",
        uses=("self", "parallel_mode"),
    ),
)


def _experts(_context: PatchContext, _result: None, layer: Any) -> None:
    """As upstream; experts are marked as Megatron marks them itself since 0.20."""
    config = layer.config
    ranks = config.expert_tensor_parallel_size
    shards = getattr(config, "gtp_weight_remat_size", None)  # since 0.19, which marks the parts
    apart = config.expert_model_parallel_size > 1 or ranks != config.tensor_model_parallel_size
    apart = apart or getattr(config, "expert_gtp_weight_remat_size", None) != shards
    for name, parameter in layer.experts.named_parameters():
        parameter.allreduce = not apart
        if shards is not None:
            continue
        second = "linear_fc2" in name
        has_whole = ranks > 1 and second and name.rpartition(".")[2].startswith("bias")
        if not (has_whole or getattr(parameter, "tensor_model_parallel", False)):
            parameter.tensor_model_parallel = True
            parameter.partition_dim = int(second)
            parameter.partition_stride = 1


_EXPERTS = (
    megatron_patch(
        id="expert-weights",
        target="megatron.core.transformer.moe.moe_layer:MoELayer.__init__",
        requires="megatron-core>=0.12,<0.20",
        elsewhere="since 0.20 Megatron marks the weights of experts itself",
        kind=Kind.WRAP,
        make=after(_experts),
        why="gradients of experts whose tensor parallelism is not that of attention are not summed "
        "over the ranks that have the same ones, and those of grouped experts count on one "
        "tensor-parallel rank only in the norm by which gradients are clipped",
        removed_when="Megatron before 0.20 is not supported",
        loses="experts learn from a part of the tokens with --expert-tensor-parallel-size below "
        "--tensor-model-parallel-size, and gradients are clipped less than in one process",
        uses=("self",),
    ),
)


def _shards(_context: PatchContext, _result: None, ddp: Any) -> None:
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


_SHARDS = megatron_patch(
    id="expert-shard-gradients",
    target="megatron.core.distributed.distributed_data_parallel:DistributedDataParallel.__init__",
    kind=Kind.WRAP,
    make=after(_shards),
    why="gradients of experts are divided by the dense layers' weight shards",
    removed_when="upstream divides them by the ranks that have tokens",
    loses="gradients of experts are too large or too small by the ratio of the shards",
    requires=f"{DISTRIBUTION}>=0.19",
    elsewhere="before 0.19 Megatron has no weight shards",
    uses=("self",),
)

PATCHES = (*_REGIONS, *_REDUCE, *_WEIGHT_GRADIENT, *_DUPLICATED, *_EXPERTS, _SHARDS)
