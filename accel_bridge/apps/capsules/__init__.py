"""Capsules: which module to look into, and which of its operators departs. torch is imported late.

:mod:`accel_bridge.apps.capsules.replayed` runs operators again.
"""

from __future__ import annotations

from accel_bridge.apps.capsules._choose import FirstBit, Place, choose, first_bit

__all__ = ["FirstBit", "Place", "choose", "first_bit"]
