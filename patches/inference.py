"""Inference: kernels of Megatron's own that only a GPU takes."""

from __future__ import annotations

from accel_bridge._host import Host
from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind


def _launches_triton(host: Host) -> str | None:
    return "Triton compiles kernels for this device" if host.features.triton else None


PATCHES = (
    megatron_patch(
        id="inference-cache",
        target="megatron.core.inference.contexts.dynamic_context:triton_append_key_value_cache",
        kind=Kind.ATTRIBUTE,
        make=lambda context: None,
        why="the kernel asserts that its tensors' device is called cuda; without it Megatron "
        "writes keys and values with PyTorch",
        removed_when="upstream asks is_cuda",
        loses="the dynamic inference engine stops at the first token",
        requires="megatron-core>=0.15",
        elsewhere="before 0.15 there is no such kernel",
        skip_when=_launches_triton,
    ),
)
