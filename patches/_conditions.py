"""Conditions under which a patch is not needed: each is a ``skip_when``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accel_bridge.patching.host import Host

if TYPE_CHECKING:
    from accel_bridge.kernels import Kernel

Condition = Callable[[Host], str | None]


def unless_faster(name: str) -> Condition:
    """Keep Megatron's code if the kernel is a reference, which is no faster."""

    def skip(host: Host) -> str | None:
        from accel_bridge.kernels import CONTRACTS

        kernel: Kernel[Any, Any] | None = host.kernels.get(CONTRACTS[name])
        if kernel is None or not kernel.is_reference:
            return None
        return f"{name}: {kernel.why}; Megatron's own code computes the same"

    return skip


def on_host(host: Host) -> str | None:
    """Device tensors are host tensors: nothing is launched or copied."""
    return "device tensors are host tensors" if host.features.tensors_on_host else None


def without_transformer_engine(host: Host) -> str | None:
    """There is nothing to build Megatron's classes for Transformer Engine with."""
    if host.library("transformer_engine"):
        return None
    return "there is no Transformer Engine"
