"""accel_bridge: the Megatron script you have runs unchanged on the hardware you have.

``import accel_bridge.auto`` before Megatron is all a script needs. This module imports no torch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from accel_bridge.process.lazy import lazy_names, link_parts

if TYPE_CHECKING:
    from accel_bridge.bridge.activation import activate, current, deactivate
    from accel_bridge.device.backend import Backend, DeviceSpec, Features, Probe
    from accel_bridge.errors import BridgeError
    from accel_bridge.plugins.hookspecs import hookimpl

__version__ = "0.2.0"

__all__ = [
    "Backend",
    "BridgeError",
    "DeviceSpec",
    "Features",
    "Probe",
    "__version__",
    "activate",
    "current",
    "deactivate",
    "hookimpl",
]

# Absent only for programs without the bridge (accel_bridge_start).
if sys.modules.get("transformer_engine", ...) is None:
    del sys.modules["transformer_engine"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Backend": "device.backend",
        "BridgeError": "errors",
        "DeviceSpec": "device.backend",
        "Features": "device.backend",
        "Probe": "device.backend",
        "activate": "bridge.activation",
        "current": "bridge.activation",
        "deactivate": "bridge.activation",
        "hookimpl": "plugins.hookspecs",
    },
)


link_parts(sys.modules[__name__], Path(__file__).parent)
