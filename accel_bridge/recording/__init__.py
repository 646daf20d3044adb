"""Recordings: a training run's numbers in a small file, and the comparison of two of them.

Reading and comparing need neither torch nor Megatron, so two files can be compared anywhere.
"""

from __future__ import annotations

from accel_bridge.recording._compare import Comparison, Departure, Kind, StepRow, compare
from accel_bridge.recording._document import Observation, Recording, Step
from accel_bridge.recording._file import RecordingError, read, write
from accel_bridge.recording._identity import NotComparable
from accel_bridge.recording._moments import Moments
from accel_bridge.recording._plan import Plan, current_plan, set_plan

__all__ = [
    "Comparison",
    "Departure",
    "Kind",
    "Moments",
    "NotComparable",
    "Observation",
    "Plan",
    "Recording",
    "RecordingError",
    "Step",
    "StepRow",
    "compare",
    "current_plan",
    "read",
    "set_plan",
    "write",
]
