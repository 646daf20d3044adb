"""`accel-bridge doctor`: an examination, and the checks that are about no certain hardware."""

from __future__ import annotations

from typing import Final

from accel_bridge.apps.doctor import environment, packages, system
from accel_bridge.apps.doctor._command import Training, take_apart
from accel_bridge.apps.doctor._examination import STEPS, Result, choose, examine
from accel_bridge.plugins.checks import Check

__all__ = ["CHECKS", "STEPS", "Result", "Training", "choose", "examine", "take_apart"]

#: In the order in which they are shown.
CHECKS: Final[tuple[Check, ...]] = (
    *packages.CHECKS,
    *environment.CHECKS,
    *system.CHECKS,
    *environment.NETWORK_CHECKS,
)
