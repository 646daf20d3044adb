"""The plugin of the CUDA backend."""

from __future__ import annotations

from accel_bridge.plugin import Backend, Check, hookimpl


@hookimpl
def accel_bridge_backends() -> list[Backend]:
    """The CUDA backend."""
    from accel_bridge.backends.cuda._backend import CudaBackend

    return [CudaBackend()]


@hookimpl
def accel_bridge_checks() -> list[Check]:
    """What stops a training on NVIDIA GPUs."""
    from accel_bridge.backends.cuda import checks, library_checks

    return [*checks.CHECKS, *library_checks.CHECKS]
