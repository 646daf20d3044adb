"""Models that were initialized on the host get to the device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from accel_bridge._host import Host
from accel_bridge.patches._upstream import REQUIRES, SOURCE
from accel_bridge.patching import Kind, Patch, PatchContext


def _make_prepare(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original

    @functools.wraps(upstream)
    def prepare_existing_model_chunks_for_distributed_training(
        model_list: list[Any],
        transformer_config: Any,
        *args: Any,
        use_torch_fsdp2: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Move the chunks to the device, which upstream does only where they were made there."""
        if transformer_config.use_cpu_initialization and not use_torch_fsdp2:
            for chunk in model_list:
                chunk.cuda(torch.cuda.current_device())
        return upstream(
            model_list, transformer_config, *args, use_torch_fsdp2=use_torch_fsdp2, **kwargs
        )

    return prepare_existing_model_chunks_for_distributed_training


def _on_host(host: Host) -> str | None:
    return "device tensors are host tensors" if host.features.tensors_on_host else None


PATCHES = (
    Patch(
        id="host-initialization",
        target="megatron.training.models.dist_utils:"
        "prepare_existing_model_chunks_for_distributed_training",
        kind=Kind.WRAP,
        make=_make_prepare,
        why="with --use-cpu-initialization the model stays on the host: half precision then stops "
        "in the optimizer, and float32 trains on the processor",
        upstream=f"{SOURCE}/training/models/dist_utils.py",
        removed_when="upstream moves models that were initialized on the host",
        loses="--use-cpu-initialization does not train on the device",
        requires=REQUIRES,
        parameters=(
            "model_list",
            "transformer_config",
            "pg_collection",
            "ddp_config",
            "overlap_param_gather_with_optimizer_step",
            "use_megatron_fsdp",
            "use_torch_fsdp2",
            "wrap_with_ddp",
            "data_parallel_random_init",
            "mixed_precision_wrapper",
        ),
        skip_when=_on_host,
    ),
)
