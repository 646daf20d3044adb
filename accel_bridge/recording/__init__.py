"""Recordings: a training run's numbers in a small file.

Reading needs neither torch nor Megatron; :mod:`accel_bridge.apps.comparison` compares two files.
"""

from __future__ import annotations

from accel_bridge.recording._document import KINDS, Observation, Recording, Step
from accel_bridge.recording._file import MAGIC, RecordingError, check_zstd, read, write
from accel_bridge.recording._moments import Moments
from accel_bridge.recording._plan import EVERY, PLAN, Plan, current_plan, machine, set_plan

__all__ = [
    "EVERY",
    "KINDS",
    "MAGIC",
    "PLAN",
    "Moments",
    "Observation",
    "Plan",
    "Recording",
    "RecordingError",
    "Step",
    "check_zstd",
    "current_plan",
    "machine",
    "read",
    "set_plan",
    "write",
]
