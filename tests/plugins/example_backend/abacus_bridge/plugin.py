"""The plugin: what the entry point names. It is imported on every machine, so it is small."""

from __future__ import annotations

from pathlib import Path

from abacus_bridge.backend import DEVICE, AbacusBackend
from accel_bridge.plugin import Backend, Command, Variable, hookimpl


@hookimpl
def accel_bridge_backends() -> list[Backend]:
    """The Abacus backend."""
    return [AbacusBackend()]


@hookimpl
def accel_bridge_variables() -> list[Variable[Path]]:
    """Shown by `accel-bridge env`; a misspelt name gets a suggestion."""
    return [DEVICE]


@hookimpl
def accel_bridge_commands() -> list[Command]:
    """Listed by `accel-bridge --help`; its module is imported when it is used."""
    return [Command("count-beads", "count the beads of every Abacus", "abacus_bridge.beads:main")]
