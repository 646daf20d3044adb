"""msprobe's dumps beside one another, or beside a recording: the first operator that departs."""

from __future__ import annotations

from accel_bridge.apps.dumps._compare import Departure, Found, compare, compare_recording
from accel_bridge.apps.dumps._read import Call, Dump, DumpError, is_dump, read
from accel_bridge.apps.dumps._report import as_json, as_text

__all__ = [
    "Call",
    "Departure",
    "Dump",
    "DumpError",
    "Found",
    "as_json",
    "as_text",
    "compare",
    "compare_recording",
    "is_dump",
    "read",
]
