"""The device redirection engine: one device behind everything that torch calls CUDA."""

from __future__ import annotations

from accel_bridge.device._cuda_module import DeviceFunctionError
from accel_bridge.device._generators import generator_state, set_generator_state
from accel_bridge.device._redirection import DeviceRedirection

__all__ = [
    "DeviceFunctionError",
    "DeviceRedirection",
    "generator_state",
    "set_generator_state",
]
