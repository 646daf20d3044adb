"""Everything that a plugin needs to implement hooks. Importing this module imports no torch.

Accessing ``Kernel`` or ``Kernels`` imports torch: import them only in modules that define kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_bridge._hookspecs import hookimpl
from accel_bridge._lazy import lazy_names

if TYPE_CHECKING:
    from accel_bridge._adaptors import Adaptor
    from accel_bridge._arguments import ArgumentRule, RefusedArgument
    from accel_bridge._backend import Backend, DeviceSpec, Features, Memory, Probe
    from accel_bridge._checks import Check
    from accel_bridge._commands import Command
    from accel_bridge._environment import Variable, one_of
    from accel_bridge._findings import Finding, Verdict, fails, ok, warning
    from accel_bridge._host import Host
    from accel_bridge._machine import Machine, Reading, Run
    from accel_bridge._takeover import Takeover
    from accel_bridge.kernels import Kernel, Kernels
    from accel_bridge.patching import Kind, Patch, PatchContext

__all__ = [
    "Adaptor",
    "ArgumentRule",
    "Backend",
    "Check",
    "Command",
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
    "Takeover",
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
        "Adaptor": "_adaptors",
        "ArgumentRule": "_arguments",
        "Backend": "_backend",
        "Check": "_checks",
        "Command": "_commands",
        "DeviceSpec": "_backend",
        "Features": "_backend",
        "Finding": "_findings",
        "Host": "_host",
        "Kernel": "kernels",
        "Kernels": "kernels",
        "Kind": "patching",
        "Machine": "_machine",
        "Memory": "_backend",
        "Patch": "patching",
        "PatchContext": "patching",
        "Probe": "_backend",
        "Reading": "_machine",
        "RefusedArgument": "_arguments",
        "Run": "_machine",
        "Takeover": "_takeover",
        "Variable": "_environment",
        "Verdict": "_findings",
        "fails": "_findings",
        "ok": "_findings",
        "one_of": "_environment",
        "warning": "_findings",
    },
)
