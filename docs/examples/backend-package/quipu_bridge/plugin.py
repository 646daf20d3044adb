"""The plugin: what the entry point names. It is imported on every machine, so it is small."""

from __future__ import annotations

from pathlib import Path

from accel_bridge.plugin import Backend, Variable, hookimpl
from quipu_bridge.backend import DEVICES, QuipuBackend


@hookimpl
def accel_bridge_backends() -> list[Backend]:
    """The Quipu backend."""
    return [QuipuBackend()]


@hookimpl
def accel_bridge_variables() -> list[Variable[Path]]:
    """Shown by `accel-bridge env`; a misspelt name gets a suggestion."""
    return [DEVICES]
