"""Moving models that were initialized on the host to the device."""

from __future__ import annotations

from typing import Any

from accel_bridge.patches._conditions import on_host
from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext, before


def _move(context: PatchContext, chunks: Any, config: Any, fsdp2: bool) -> None:
    """Move the chunks to the device; upstream does so only if they were made there."""
    import torch

    if config.use_cpu_initialization and not fsdp2:
        for chunk in chunks:
            chunk.to(torch.device("cuda", torch.cuda.current_device()))


PATCHES = (
    megatron_patch(
        id="host-initialization",
        target="megatron.training.models.dist_utils:"
        "prepare_existing_model_chunks_for_distributed_training",
        kind=Kind.WRAP,
        make=before(_move),
        why="with --use-cpu-initialization the model stays on the host: half precision then stops "
        "in the optimizer, and float32 trains on the processor",
        removed_when="upstream moves models that were initialized on the host",
        loses="--use-cpu-initialization does not train on the device",
        requires="megatron-core>=0.19",
        elsewhere="before 0.19 Megatron moves every model",
        uses=("model_list", "transformer_config", "use_torch_fsdp2"),
        skip_when=on_host,
    ),
)
