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
    from accel_bridge.patching.arguments import ArgumentRule, RefusedArgument
    from accel_bridge.patching.host import Host
    from accel_bridge.plugins.adaptors import Adaptor
    from accel_bridge.plugins.checks import Check
    from accel_bridge.plugins.commands import Command
    from accel_bridge.plugins.delegation import Delegation
    from accel_bridge.plugins.findings import Finding, Verdict, fails, ok, warning
    from accel_bridge.plugins.machine import Machine, Reading, Run
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
    "Patch",
    "PatchContext",
    "Probe",
    "Reading",
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
        "ArgumentRule": "patching.arguments",
        "Backend": "device.backend",
        "Check": "plugins.checks",
        "Command": "plugins.commands",
        "DeviceSpec": "device.backend",
        "Features": "device.backend",
        "Finding": "plugins.findings",
        "Host": "patching.host",
        "Kernel": "kernels",
        "Kernels": "kernels",
        "Kind": "patching",
        "Machine": "plugins.machine",
        "Memory": "device.backend",
        "Patch": "patching",
        "PatchContext": "patching",
        "Probe": "device.backend",
        "Reading": "plugins.machine",
        "RefusedArgument": "patching.arguments",
        "Run": "plugins.machine",
        "Delegation": "plugins.delegation",
        "Variable": "process.environment",
        "Verdict": "plugins.findings",
        "fails": "plugins.findings",
        "ok": "plugins.findings",
        "one_of": "process.environment",
        "warning": "plugins.findings",
    },
)
