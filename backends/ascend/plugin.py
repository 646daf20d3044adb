"""The plugin of the Ascend backend."""

from __future__ import annotations

from accel_bridge._backend import Backend
from accel_bridge._hookspecs import hookimpl
from accel_bridge.backends.ascend._backend import AscendBackend


@hookimpl
def accel_bridge_backends() -> list[Backend]:
    """The Ascend backend."""
    return [AscendBackend()]
