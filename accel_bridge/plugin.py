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
    from accel_bridge._backend import Backend, DeviceSpec, Features, Probe
    from accel_bridge._commands import Command
    from accel_bridge._environment import Variable, one_of
    from accel_bridge._host import Host
    from accel_bridge._takeover import Takeover
    from accel_bridge.kernels import Kernel, Kernels
    from accel_bridge.patching import Kind, Patch, PatchContext

__all__ = [
    "Adaptor",
    "ArgumentRule",
    "Backend",
    "Command",
    "DeviceSpec",
    "Features",
    "Host",
    "Kernel",
    "Kernels",
    "Kind",
    "Patch",
    "PatchContext",
    "Probe",
    "RefusedArgument",
    "Takeover",
    "Variable",
    "hookimpl",
    "one_of",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Adaptor": "_adaptors",
        "ArgumentRule": "_arguments",
        "Backend": "_backend",
        "Command": "_commands",
        "DeviceSpec": "_backend",
        "Features": "_backend",
        "Host": "_host",
        "Kernel": "kernels",
        "Kernels": "kernels",
        "Kind": "patching",
        "Patch": "patching",
        "PatchContext": "patching",
        "Probe": "_backend",
        "RefusedArgument": "_arguments",
        "Takeover": "_takeover",
        "Variable": "_environment",
        "one_of": "_environment",
    },
)
