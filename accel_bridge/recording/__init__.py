"""Recordings: a training run's numbers in a small file.

Reading needs neither torch nor Megatron; :mod:`accel_bridge.apps.comparison` compares two files.
"""

from __future__ import annotations

from accel_bridge.recording._capsule import Capsule, Operator, Value
from accel_bridge.recording._capsule_file import CAPSULE_MAGIC, read_capsule, write_capsule
from accel_bridge.recording._document import KINDS, Observation, Recording, Step
from accel_bridge.recording._file import MAGIC, RecordingError, check_zstd, read, write
from accel_bridge.recording._moments import Moments
from accel_bridge.recording._plan import EVERY, PLAN, Plan, current_plan, machine, set_plan

__all__ = [
    "CAPSULE_MAGIC",
    "EVERY",
    "KINDS",
    "MAGIC",
    "PLAN",
    "Capsule",
    "Moments",
    "Observation",
    "Operator",
    "Plan",
    "Recording",
    "RecordingError",
    "Step",
    "Value",
    "check_zstd",
    "current_plan",
    "machine",
    "read",
    "read_capsule",
    "set_plan",
    "write",
    "write_capsule",
]
