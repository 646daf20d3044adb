"""The plugin of the CUDA backend."""

from __future__ import annotations

from accel_bridge._backend import Backend
from accel_bridge._hookspecs import hookimpl
from accel_bridge.backends.cuda._backend import CudaBackend


@hookimpl
def accel_bridge_backends() -> list[Backend]:
    """The CUDA backend."""
    return [CudaBackend()]
