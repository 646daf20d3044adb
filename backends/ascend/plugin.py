"""The plugin of the Ascend backend and of its emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from accel_bridge.backends.ascend._emulation import TORCH_NPU
from accel_bridge.backends.ascend.limits import CHIP
from accel_bridge.plugin import Adaptor, Backend, Check, Command, Variable, hookimpl

_NAME: Final = "ascend"
#: Holds an empty torch_npu.
_SHIMS: Final = Path(__file__).with_name("shims")


@hookimpl
def accel_bridge_backends() -> list[Backend]:
    """The Ascend backend."""
    from accel_bridge.backends.ascend._backend import AscendBackend

    return [AscendBackend()]


@hookimpl
def accel_bridge_variables() -> list[Variable[Any]]:
    """Where the emulator finds torch_npu, and whose limits apply."""
    return [TORCH_NPU, CHIP]


@hookimpl
def accel_bridge_commands() -> list[Command]:
    """The emulator, and the walk along the table of limits."""
    return [
        Command(
            "emulate-ascend",
            "run a command on EMULATED Ascend NPUs, with the real torch_npu",
            "accel_bridge.backends.ascend.emulator:main",
            group="Check",
        ),
        Command(
            "ascend-limits",
            "try both sides of every documented limit on this NPU",
            "accel_bridge.backends.ascend.limit_command:main",
            group="Check",
        ),
    ]


@hookimpl
def accel_bridge_adaptors(backend: Backend) -> list[Adaptor]:
    """torch_npu, for scripts that import it first of all, on any device but an NPU."""
    if backend.name == _NAME:
        return []
    return [Adaptor("torch_npu", _SHIMS, "there is no Ascend NPU")]


@hookimpl
def accel_bridge_checks() -> list[Check]:
    """What stops a training on NPUs, and what torch_npu does elsewhere."""
    from accel_bridge.backends.ascend import checks

    return list(checks.CHECKS)
