"""When a patch that only makes Megatron faster has nothing to offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_bridge._host import Host
from accel_bridge.kernels import CONTRACTS, Kernel


def unless_faster(*contracts: str) -> Callable[[Host], str | None]:
    """A ``skip_when`` that leaves Megatron's code alone where the kernels are references."""

    def skip(host: Host) -> str | None:
        for name in contracts:
            kernel: Kernel[Any, Any] | None = host.kernels.get(CONTRACTS[name])
            if kernel is not None and kernel.is_reference:
                return f"{name}: {kernel.why}; Megatron's own code computes the same"
        return None

    return skip
