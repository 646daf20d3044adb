"""The gradient of the rotary part of latent attention's key, which all heads share.

Tensor-parallel ranks have heads of their own, so each has a part of that gradient. Only sequence
parallelism with Transformer Engine's layers sums the parts.

Legend: s sequence, b batch, c compressed key and value, r rotary part, p tensor-parallel ranks.
"""

from __future__ import annotations

import functools
from typing import Any

from accel_bridge.patches._factory import DISTRIBUTION, megatron_patch
from accel_bridge.patching import Kind, PatchContext, after


def _init(_context: PatchContext, _result: None, attention: Any) -> None:
    """As upstream; then the down projection gives what Megatron's code takes it to give."""
    projection = getattr(attention, "linear_kv_down_proj", None)
    if attention.config.tensor_model_parallel_size > 1 and projection is not None:
        projection.register_forward_hook(functools.partial(_whole, attention.config))


def _whole(config: Any, _module: Any, _args: Any, output: Any) -> Any:
    """The output of a projection that every rank has in full, whose gradient is whole.

    :param output: [s, b, (c + r) / p] of local layers or [s, b, c + r] of Transformer Engine's,
        whose s is a rank's with sequence parallelism, and a bias.
    """
    import torch
    from megatron.core.tensor_parallel import (
        copy_to_tensor_model_parallel_region,
        gather_from_tensor_model_parallel_region,
        scatter_to_sequence_parallel_region,
    )

    combined: torch.Tensor
    combined, *bias = output
    rotary = config.qk_pos_emb_head_dim
    if combined.size(-1) != config.kv_lora_rank + rotary:
        combined = gather_from_tensor_model_parallel_region(combined)
        if config.sequence_parallel:
            combined = scatter_to_sequence_parallel_region(combined)
    if not config.sequence_parallel:
        compressed, shared = combined.split([config.kv_lora_rank, rotary], dim=-1)
        shared = copy_to_tensor_model_parallel_region(shared)
        combined = torch.cat([compressed, shared], dim=-1)
    return (combined, *bias)


PATCHES = (
    megatron_patch(
        id="latent-gradients",
        target="megatron.core.transformer.multi_latent_attention:MLASelfAttention.__init__",
        kind=Kind.WRAP,
        make=after(_init),
        why="the rotary part of the key is shared by all heads, and each tensor-parallel rank has "
        "the gradient of its own heads only: nothing sums them",
        removed_when="upstream sums that gradient without sequence parallelism and in local layers",
        loses="multi-latent attention trains with wrong gradients, and with other weights on each "
        "rank, with tensor but without sequence parallelism or with --transformer-impl local",
        uses=("self",),
    ),
    megatron_patch(
        id="absorbed-latent-gradients",
        target="megatron.core.transformer.experimental_attention_variant.absorbed_mla:"
        "AbsorbedMLASelfAttention.__init__",
        kind=Kind.WRAP,
        make=after(_init),
        why="the same in DSA's attention with split down projections",
        removed_when="upstream sums that gradient there",
        loses="multi-latent attention of DSA trains with wrong gradients with such projections",
        requires=f"{DISTRIBUTION}>=0.17",
        elsewhere="before 0.17 Megatron has no such attention",
        uses=("self",),
    ),
)
