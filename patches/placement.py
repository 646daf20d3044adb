"""Where models and processes are: on the device, and near it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import has_own_memory, megatron_patch, on_host
from accel_bridge.patching import Kind, PatchContext, after, around, before
from accel_bridge.patching.host import Host


def _move(context: PatchContext, chunks: Any, config: Any, fsdp2: bool) -> None:
    """Move the chunks to the device; upstream does so only if they were made there."""
    import torch

    if config.use_cpu_initialization and not fsdp2:
        for chunk in chunks:
            chunk.to(torch.device("cuda", torch.cuda.current_device()))


def _nvml_knows_it(host: Host) -> str | None:
    return "the device is NVIDIA's" if host.backend.device() is None else None


def _make_affinity(context: PatchContext) -> Callable[..., None]:
    say = context.host.say_once

    def set_ideal_affinity_for_current_gpu(*args: Any, **kwargs: Any) -> None:
        """Leave the process where it is: which cores are near this device is not NVML's to say."""
        say("processor affinity: left alone (NVML, which upstream asks, does not know this device)")

    return set_ideal_affinity_for_current_gpu


def _no_other_device(host: Host) -> str | None:
    return _nvml_knows_it(host) or on_host(host)


def _make_offload(context: PatchContext) -> Callable[[Any], bool]:
    upstream, module = context.original, context.module

    @functools.wraps(upstream)
    def _can_manage_tensor_for_offload(tensor: Any) -> bool:
        """As upstream, for activations of the device that stands in for CUDA as well."""
        if upstream(tensor):
            return True
        torch = module.torch  # a rehearsal's takes no tensor for one that is traced
        traced = torch._subclasses
        no_activations = (
            torch.nn.Parameter,
            traced.fake_tensor.FakeTensor,
            traced.functional_tensor.FunctionalTensor,
        )
        return tensor.is_cuda and not isinstance(tensor, no_activations)

    return _can_manage_tensor_for_offload


def _finished(_context: PatchContext, call: Callable[[], Any], chunk: Any, name: str | None) -> Any:
    """As upstream, but not while the chunk still expects a group of that name."""
    rest = chunk.offload_groups[chunk._offloaded_group_index :]
    if name is not None and any(group._name == name for group in rest):
        return False
    return call()


def _keep_stream(context: PatchContext, _result: None, buffer: Any) -> None:
    """Upstream keeps the stream of a buffer only where the buffer says that it is on CUDA."""
    if buffer.allocation_stream is None:
        buffer.allocation_stream = context.module.torch.cuda.current_stream()


PATCHES = (
    megatron_patch(
        id="fsdp-stream",
        target="megatron.core.distributed.fsdp.src.megatron_fsdp.experimental.dbuffer:"
        "DBuffer.__init__",
        kind=Kind.WRAP,
        make=after(_keep_stream),
        why="it keeps a buffer's stream only where is_cuda says so, and compares it later",
        removed_when="upstream's DBuffer does not compare streams",
        loses="--megatron-fsdp-version 2 stops in its first step on the cpu backend",
        requires="megatron-core>=0.20",
        elsewhere="before 0.20 Megatron's buffers know no stream",
        uses=("self",),
        skip_when=has_own_memory,
    ),
    megatron_patch(
        id="offload-chunks",
        target="megatron.core.pipeline_parallel.fine_grained_activation_offload:"
        "ChunkOffloadHandler.finish_all_groups",
        kind=Kind.WRAP,
        make=around(_finished),
        why="a chunk that moves no tensor, such as a last stage of one layer, is called finished "
        "after its first group",
        removed_when="upstream's finish_all_groups looks at the groups that are left",
        loses="--fine-grained-activation-offloading stops in its second iteration with 'Chunk "
        "mismatch' where a stage has one layer, as one of multi-token prediction",
        requires="megatron-core>=0.16",
        elsewhere="before 0.16 Megatron has no such offloading",
        uses=("self", "name"),
    ),
    megatron_patch(
        id="activation-offload",
        target="megatron.core.pipeline_parallel.fine_grained_activation_offload:"
        "ChunkOffloadHandler._can_manage_tensor_for_offload",
        kind=Kind.WRAP,
        make=_make_offload,
        why="it moves tensors whose device is called cuda, and no others",
        removed_when="upstream asks is_cuda",
        loses="--fine-grained-activation-offloading moves nothing, and does not say so",
        requires="megatron-core>=0.19",
        elsewhere="before 0.19 Megatron does not ask for the device",
        uses=("tensor",),
        skip_when=_no_other_device,
    ),
    megatron_patch(
        id="device-affinity",
        target="megatron.core.pipeline_parallel.utils:set_ideal_affinity_for_current_gpu",
        kind=Kind.WRAP,
        make=_make_affinity,
        why="it asks the CUDA driver and NVML which cores are near the GPU",
        removed_when="upstream leaves the affinity alone where NVML knows no device",
        loses="--fine-grained-activation-offloading stops with No module named 'pynvml'",
        requires="megatron-core>=0.16",
        elsewhere="before 0.16 Megatron sets no affinity",
        skip_when=_nvml_knows_it,
    ),
    megatron_patch(
        id="energy-monitor",
        target="megatron.core.energy_monitor:has_nvml",
        kind=Kind.ATTRIBUTE,
        make=lambda context: False,
        why="it asks NVML wherever pynvml can be imported",
        removed_when="upstream does without energy where NVML knows no device",
        loses="--log-energy stops with 'NVML Shared Library Not Found' where nvidia-ml-py is "
        "installed",
        requires="megatron-core>=0.13",
        elsewhere="before 0.13 Megatron measures no energy",
        skip_when=_nvml_knows_it,
    ),
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
    ),
)
