"""The plugin that contributes the CPU backend."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bridge._backend import Backend
from accel_bridge._hookspecs import hookimpl
from accel_bridge.backends.cpu._backend import CpuBackend


@hookimpl
def accel_bridge_backends() -> Sequence[Backend]:
    """The CPU, always."""
    return [CpuBackend()]
