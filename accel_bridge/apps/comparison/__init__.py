"""The comparison of two recordings: steps, departures, verdict, report and picture."""

from __future__ import annotations

from accel_bridge.apps.comparison._compare import (
    LIMITS,
    Comparison,
    Departure,
    Kind,
    NotComparable,
    StepRow,
    compare,
    depths,
    moved_by,
    place_of,
)
from accel_bridge.apps.comparison._report import (
    DEPARTURE_COLUMNS,
    MADE_BY,
    STEP_COLUMNS,
    as_html,
    as_json,
    departure_cells,
    draw,
    facts,
    step_cells,
    verdict,
)

__all__ = [
    "DEPARTURE_COLUMNS",
    "LIMITS",
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
    "depths",
    "draw",
    "facts",
    "moved_by",
    "place_of",
    "step_cells",
    "verdict",
]
