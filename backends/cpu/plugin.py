"""The plugin that contributes the CPU backend."""

from __future__ import annotations

from accel_bridge.plugin import Backend, hookimpl


@hookimpl
def accel_bridge_backends() -> list[Backend]:
    """The CPU, always."""
    from accel_bridge.backends.cpu._backend import CpuBackend

    return [CpuBackend()]
