"""Conditions under which a patch is not needed: each is a ``skip_when``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accel_bridge._host import Host

if TYPE_CHECKING:
    from accel_bridge.kernels import Kernel

Condition = Callable[[Host], str | None]


def unless_faster(*contracts: str) -> Condition:
    """Keep Megatron's code if the kernels are references, which are no faster."""

    def skip(host: Host) -> str | None:
        from accel_bridge.kernels import CONTRACTS

        for name in contracts:
            kernel: Kernel[Any, Any] | None = host.kernels.get(CONTRACTS[name])
            if kernel is not None and kernel.is_reference:
                return f"{name}: {kernel.why}; Megatron's own code computes the same"
        return None

    return skip


def on_host(host: Host) -> str | None:
    """Device tensors are host tensors: nothing is launched or copied."""
    return "device tensors are host tensors" if host.features.tensors_on_host else None


def without_transformer_engine(host: Host) -> str | None:
    """There is nothing to build Megatron's classes for Transformer Engine with."""
    if host.library("transformer_engine"):
        return None
    return "neither Transformer Engine nor its stand-in is here"
