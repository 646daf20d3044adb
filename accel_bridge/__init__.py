"""accel_bridge: the Megatron script you have runs unchanged on the hardware you have.

``import accel_bridge.auto`` before Megatron is all a script needs. This module imports no torch.
"""

from __future__ import annotations

__version__ = "0.1.0"
