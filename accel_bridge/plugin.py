"""Everything that a plugin needs to implement hooks. Importing this module imports no torch.

Accessing ``Kernel`` or ``Kernels`` imports torch: import them only in modules that define kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_bridge.plugins.hookspecs import hookimpl
from accel_bridge.process.lazy import lazy_names

if TYPE_CHECKING:
    from accel_bridge.device.backend import Backend, DeviceSpec, Features, Memory, Probe
    from accel_bridge.kernels import Kernel, Kernels
    from accel_bridge.patching import Kind, Patch, PatchContext
    from accel_bridge.patching.host import ArgumentRule, Host, RefusedArgument
    from accel_bridge.plugins.adaptors import Adaptor, Delegation
    from accel_bridge.plugins.checks import (
        Check,
        Finding,
        Machine,
        ParsedArguments,
        Run,
        Verdict,
        fails,
        ok,
        warning,
    )
    from accel_bridge.plugins.commands import Command
    from accel_bridge.process.environment import Variable, one_of

__all__ = [
    "Adaptor",
    "ArgumentRule",
    "Backend",
    "Check",
    "Command",
    "Delegation",
    "DeviceSpec",
    "Features",
    "Finding",
    "Host",
    "Kernel",
    "Kernels",
    "Kind",
    "Machine",
    "Memory",
    "ParsedArguments",
    "Patch",
    "PatchContext",
    "Probe",
    "RefusedArgument",
    "Run",
    "Variable",
    "Verdict",
    "fails",
    "hookimpl",
    "ok",
    "one_of",
    "warning",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Adaptor": "plugins.adaptors",
        "ArgumentRule": "patching.host",
        "Backend": "device.backend",
        "Check": "plugins.checks",
        "Command": "plugins.commands",
        "DeviceSpec": "device.backend",
        "Features": "device.backend",
        "Finding": "plugins.checks",
        "Host": "patching.host",
        "Kernel": "kernels",
        "Kernels": "kernels",
        "Kind": "patching",
        "Machine": "plugins.checks",
        "Memory": "device.backend",
        "Patch": "patching",
        "PatchContext": "patching",
        "Probe": "device.backend",
        "ParsedArguments": "plugins.checks",
        "RefusedArgument": "patching.host",
        "Run": "plugins.checks",
        "Delegation": "plugins.adaptors",
        "Variable": "process.environment",
        "Verdict": "plugins.checks",
        "fails": "plugins.checks",
        "ok": "plugins.checks",
        "one_of": "process.environment",
        "warning": "plugins.checks",
    },
)
