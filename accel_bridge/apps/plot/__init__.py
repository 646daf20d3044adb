"""Loss and throughput of training runs, from logs, recordings and TensorBoard folders."""

from __future__ import annotations

from accel_bridge.apps.plot._page import as_html
from accel_bridge.apps.plot._picture import (
    MADE_BY,
    as_json,
    columns,
    draw,
    notes,
    pair_columns,
    pair_rows,
    rows,
)
from accel_bridge.apps.plot._read import Point, Run, read_run, smoothed, tail, window

__all__ = [
    "MADE_BY",
    "Point",
    "Run",
    "as_html",
    "as_json",
    "columns",
    "draw",
    "notes",
    "pair_columns",
    "pair_rows",
    "read_run",
    "rows",
    "smoothed",
    "tail",
    "window",
]
