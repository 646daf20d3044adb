"""The plugin that contributes the CPU backend."""

from __future__ import annotations

from typing import Any

from accel_bridge.backends.cpu._variables import DEVICES
from accel_bridge.plugin import Backend, Variable, hookimpl


@hookimpl
def accel_bridge_backends() -> list[Backend]:
    """The CPU, always."""
    from accel_bridge.backends.cpu._backend import CpuBackend

    return [CpuBackend()]


@hookimpl
def accel_bridge_variables() -> list[Variable[Any]]:
    """How many devices there are."""
    return [DEVICES]
