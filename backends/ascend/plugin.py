"""The plugin of the Ascend backend and of its emulator."""

from __future__ import annotations

from typing import Any

from accel_bridge.backends.ascend._emulation import TORCH_NPU
from accel_bridge.plugin import Backend, Command, Variable, hookimpl


@hookimpl
def accel_bridge_backends() -> list[Backend]:
    """The Ascend backend."""
    from accel_bridge.backends.ascend._backend import AscendBackend

    return [AscendBackend()]


@hookimpl
def accel_bridge_variables() -> list[Variable[Any]]:
    """Where the emulator finds torch_npu."""
    return [TORCH_NPU]


@hookimpl
def accel_bridge_commands() -> list[Command]:
    """The emulator."""
    return [
        Command(
            "emulate-ascend",
            "run a command on EMULATED Ascend NPUs, with the real torch_npu",
            "accel_bridge.backends.ascend.emulator:main",
            group="Check",
        )
    ]
