"""The comparison of two recordings: steps, departures, verdict, report and picture."""

from __future__ import annotations

from accel_bridge.apps.comparison._compare import (
    Comparison,
    Departure,
    Kind,
    StepRow,
    compare,
    depths,
    moved_by,
    place_of,
)
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
from accel_bridge.apps.comparison._rules import LIMITS

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
