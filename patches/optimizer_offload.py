"""Optimizer CPU offload on a device whose tensors are host tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext
from accel_bridge.patching.host import Host

Groups = list[dict[str, Any]]


def _split(groups: Groups, copies: Mapping[Any, Any]) -> tuple[Groups, Groups]:
    """(groups of the copies, groups of the rest), without empty ones."""
    parts: tuple[Groups, Groups] = ([], [])
    for group in groups:
        for part, offloaded in zip(parts, (True, False), strict=True):
            params = [one for one in group["params"] if (one in copies) is offloaded]
            if params:
                part.append({**group, "params": params})
    return parts


def _make(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original

    @functools.wraps(upstream)
    def _get_sub_optimizer_param_groups(*args: Any, **kwargs: Any) -> Any:
        """As upstream, with the offloaded copies in the groups of the CPU's optimizers.

        Upstream asks ``is_cuda`` of its copies; here every tensor is on the device that stands in
        for CUDA, so they all came to the GPU's optimizer, which copies nothing back.
        """
        host, device, *maps = upstream(*args, **kwargs)
        copies, rest = _split(device, maps[1])
        return [*host, *copies], rest, *maps

    return _get_sub_optimizer_param_groups


def _host_is_elsewhere(host: Host) -> str | None:
    if host.features.tensors_on_host:
        return None
    return "host tensors are not device tensors here"


PATCHES = (
    megatron_patch(
        id="optimizer-offload",
        target="megatron.core.optimizer.cpu_offloading.hybrid_optimizer:"
        "HybridDeviceOptimizer._get_sub_optimizer_param_groups",
        kind=Kind.WRAP,
        make=_make,
        why="it tells its copies on the host from the weights by is_cuda, which is true of both "
        "where device tensors are host tensors",
        removed_when="upstream looks its copies up in its own table of them",
        loses="--optimizer-cpu-offload trains the copies, and no weight of the model ever changes",
        skip_when=_host_is_elsewhere,
    ),
)
