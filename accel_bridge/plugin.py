"""Everything that a plugin needs to implement hooks. Importing this module imports no torch.

Accessing ``Kernel`` or ``Kernels`` imports torch: import them only in modules that define kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_bridge.process.lazy import lazy_names

if TYPE_CHECKING:
    from accel_bridge.device.backend import Backend as Backend
    from accel_bridge.device.backend import DeviceSpec as DeviceSpec
    from accel_bridge.device.backend import Features as Features
    from accel_bridge.device.backend import Memory as Memory
    from accel_bridge.device.backend import Probe as Probe
    from accel_bridge.kernels import Kernel as Kernel
    from accel_bridge.kernels import Kernels as Kernels
    from accel_bridge.patching import Kind as Kind
    from accel_bridge.patching import Patch as Patch
    from accel_bridge.patching import PatchContext as PatchContext
    from accel_bridge.patching.host import ArgumentRule as ArgumentRule
    from accel_bridge.patching.host import Host as Host
    from accel_bridge.patching.host import RefusedArgument as RefusedArgument
    from accel_bridge.plugins.adaptors import Adaptor as Adaptor
    from accel_bridge.plugins.adaptors import Delegation as Delegation
    from accel_bridge.plugins.checks import Check as Check
    from accel_bridge.plugins.checks import Finding as Finding
    from accel_bridge.plugins.checks import Machine as Machine
    from accel_bridge.plugins.checks import ParsedArguments as ParsedArguments
    from accel_bridge.plugins.checks import Run as Run
    from accel_bridge.plugins.checks import Verdict as Verdict
    from accel_bridge.plugins.checks import fails as fails
    from accel_bridge.plugins.checks import ok as ok
    from accel_bridge.plugins.checks import warning as warning
    from accel_bridge.plugins.commands import Command as Command
    from accel_bridge.plugins.hookspecs import hookimpl as hookimpl
    from accel_bridge.process.environment import Variable as Variable
    from accel_bridge.process.environment import one_of as one_of

__getattr__, __dir__, __all__ = lazy_names(__name__)
