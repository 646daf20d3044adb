"""The plugin: what the entry point names. It is imported on every machine, so it is small."""

from __future__ import annotations

from abacus_bridge.backend import AbacusBackend
from accel_bridge import Backend, hookimpl


@hookimpl
def accel_bridge_backends() -> list[Backend]:
    """The Abacus backend."""
    return [AbacusBackend()]
