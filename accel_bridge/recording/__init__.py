"""Recordings: a training run's numbers in a small file, and the comparison of two of them.

Reading and comparing need neither torch nor Megatron, so two files can be compared anywhere.
"""

from __future__ import annotations

from accel_bridge.recording._compare import Comparison, Departure, Kind, StepRow, compare
from accel_bridge.recording._document import Observation, Recording, Step
from accel_bridge.recording._file import RecordingError, check_zstd, read, write
from accel_bridge.recording._identity import NotComparable
from accel_bridge.recording._moments import Moments
from accel_bridge.recording._plan import EVERY, Plan, current_plan, set_plan
from accel_bridge.recording._plot import draw
from accel_bridge.recording._report import (
    DEPARTURE_COLUMNS,
    STEP_COLUMNS,
    as_html,
    as_json,
    departure_cells,
    facts,
    step_cells,
    verdict,
)

__all__ = [
    "DEPARTURE_COLUMNS",
    "EVERY",
    "STEP_COLUMNS",
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
    "as_html",
    "as_json",
    "check_zstd",
    "compare",
    "current_plan",
    "departure_cells",
    "draw",
    "facts",
    "read",
    "set_plan",
    "step_cells",
    "verdict",
    "write",
]
