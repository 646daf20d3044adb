"""accel_bridge: the Megatron script you have runs unchanged on the hardware you have.

``import accel_bridge.auto`` before Megatron is all a script needs. This module imports no torch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from accel_bridge.process.lazy import lazy_names, link_parts

if TYPE_CHECKING:
    from accel_bridge.bridge.activation import activate as activate
    from accel_bridge.bridge.activation import current as current
    from accel_bridge.bridge.activation import deactivate as deactivate
    from accel_bridge.device.backend import Backend as Backend
    from accel_bridge.device.backend import DeviceSpec as DeviceSpec
    from accel_bridge.device.backend import Features as Features
    from accel_bridge.device.backend import Probe as Probe
    from accel_bridge.errors import BridgeError as BridgeError
    from accel_bridge.plugins.hookspecs import hookimpl as hookimpl

__version__ = "0.2.0"

# Absent only for programs without the bridge (accel_bridge_start).
if sys.modules.get("transformer_engine", ...) is None:
    del sys.modules["transformer_engine"]

__getattr__, __dir__, __all__ = lazy_names(__name__)

link_parts(sys.modules[__name__], Path(__file__).parent)
