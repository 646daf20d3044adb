"""The table of docs/performance.md, from the measured rows in docs/performance.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
DATA: Final = ROOT / "docs" / "performance.json"

#: What stands beside accel_bridge: way -> head of its column.
WAYS: Final = {
    "te": "Transformer Engine",
    "beside": "both together",
    "local": "upstream local",
}
#: Marks of leases in the table.
_MARKS: Final = "abcdefghijklmnopqrstuvwxyz"


def performance_table() -> str:
    """A line for each model, and the date, device and versions of each lease below."""
    rows: list[dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8"))
    models = list(dict.fromkeys(row["model"] for row in rows if row["way"] == "bridge"))
    leases = list(dict.fromkeys(row["lease"] for row in rows if row["way"] == "bridge"))
    heads = ("model", "accel_bridge", "spread", "TFLOP/s", *WAYS.values(), "faster than TE")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for model in models:
        ours = {row["way"]: row for row in rows if row["model"] == model}
        bridge = ours["bridge"]
        mark = _MARKS[leases.index(bridge["lease"])]
        cells = [f"`{model}` ({mark})", _time(bridge), _share(bridge), _speed(bridge)]
        # Only what was measured in the same lease can be compared.
        beside = [ours.get(way) for way in WAYS]
        same = [row if row and row["lease"] == bridge["lease"] else None for row in beside]
        cells += [_time(row) for row in same]
        cells.append(_ratio(same[0], bridge))
        lines.append(f"| {' | '.join(cells)} |")
    notes = [f"({mark}) {lease}." for mark, lease in zip(_MARKS, leases, strict=False)]
    return "\n".join([*lines, "", *notes, ""])


def _time(row: dict[str, Any] | None) -> str:
    """Milliseconds and gigabytes, or why there are none."""
    if row is None:
        return ""
    if row["milliseconds"] is None:
        return "stops"
    return f"{row['milliseconds']:.1f} ms, {row['gigabytes']:.1f} GB"


def _share(row: dict[str, Any]) -> str:
    return "" if row["milliseconds"] is None else f"{row['spread']:.1%}"


def _speed(row: dict[str, Any]) -> str:
    return f"{row['tflops']:.0f}" if row["tflops"] else ""


def _ratio(other: dict[str, Any] | None, bridge: dict[str, Any]) -> str:
    """How many times faster than the other, and with how much of its memory."""
    if other is None or not other["milliseconds"] or not bridge["milliseconds"]:
        return ""
    faster = other["milliseconds"] / bridge["milliseconds"]
    memory = bridge["gigabytes"] / other["gigabytes"]
    return f"**{faster:.2f}x**, {memory:.2f}x memory"
