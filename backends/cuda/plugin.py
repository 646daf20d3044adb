"""The plugin of the CUDA backend."""

from __future__ import annotations

from accel_bridge.plugin import Backend, hookimpl


@hookimpl
def accel_bridge_backends() -> list[Backend]:
    """The CUDA backend."""
    from accel_bridge.backends.cuda._backend import CudaBackend

    return [CudaBackend()]
