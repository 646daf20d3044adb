"""The comparison of two recordings: steps, departures, verdict, report and picture."""

from __future__ import annotations

from accel_bridge.apps.comparison._compare import Comparison, Departure, Kind, StepRow, compare
from accel_bridge.apps.comparison._identity import NotComparable
from accel_bridge.apps.comparison._plot import MADE_BY, draw
from accel_bridge.apps.comparison._report import (
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
    "MADE_BY",
    "STEP_COLUMNS",
    "Comparison",
    "Departure",
    "Kind",
    "NotComparable",
    "StepRow",
    "as_html",
    "as_json",
    "compare",
    "departure_cells",
    "draw",
    "facts",
    "step_cells",
    "verdict",
]
