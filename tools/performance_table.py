"""The tables of docs/performance.md, from the measured rows in docs/performance.json."""

from __future__ import annotations

import json
from collections.abc import Callable
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
_TE_DENSE: Final = (
    *("llama-8b", "l4-h4096", "l4-h4096-dropout", "l4-h4096-8-documents", "l4-h4096-window-1024"),
    *("qwen3", "gpt-1.3b-no-dropout", "gpt-124m-4096-bf16", "gpt-124m-512", "gpt-124m-512-fp16"),
    *("llama-16k", "llama-8b-tp2-sp", "llama-8b-dp2"),
)
_EXPERTS: Final = ("mla-moe", "mla-moe-ep2", "moe-64x6", "moe-8x2")
_RECIPES: Final = ("tensorwise", "delayed", "blockwise")
_GRAPHS: Final = ("gpt-124m-512-full-graph", "gpt-124m-512-local-graph")
#: (what is compared with what, (model, way), (model, way) that it is compared with, asked ratio)
ASKED: Final[tuple[tuple[str, tuple[str, str], tuple[str, str], float], ...]] = (
    *(("TE, dense", (model, "bridge"), (model, "te"), 1.15) for model in _TE_DENSE),
    *(("TE, experts", (model, "bridge"), (model, "te"), 1.2) for model in _EXPERTS),
    *(
        ("our bf16", (f"llama-8b-fp8-{recipe}", "bridge"), ("llama-8b", "bridge"), 1.35)
        for recipe in _RECIPES
    ),
    *(
        ("TE, FP8", (f"llama-8b-fp8-{recipe}", "bridge"), (f"llama-8b-fp8-{recipe}", "te"), 1.35)
        for recipe in _RECIPES
    ),
    *(("TE, graphs", (model, "bridge"), (model, "te"), 1.25) for model in _GRAPHS),
    ("TE, 32k tokens", ("llama-32k", "bridge"), ("llama-32k", "te"), 1.1),
)
#: TFLOP/s by Megatron's count: (model, way), asked.
ASKED_SPEED: Final = (("llama-8b", "bridge"), 600.0)
#: The window's attention as a share of full attention's: models, asked.
ASKED_WINDOW: Final = ("l4-h4096-window-1024", "l4-h4096", 0.6)
#: What Transformer Engine gains from accel_bridge beside it, asked of each model.
ASKED_BESIDE: Final = 1.1
#: Marks of leases in the table.
_MARKS: Final = "abcdefghijklmnopqrstuvwxyz"


#: What every row says.
_HEADS: Final = ("accel_bridge", "spread", "TFLOP/s", *WAYS.values(), "faster than TE")


def performance_table() -> str:
    """A line for each model of one GPU, and date, device and versions of each lease below."""
    rows = [row for row in _rows() if _gpus(row) == 1]
    lines = _lines(("model", *_HEADS), rows, lambda model, _: [model])
    return "\n".join([*lines, "", *_notes(rows), ""])


def layouts_table() -> str:
    """A line for each layout of several GPUs, with its share of one GPU's speed."""
    every = _rows()
    rows = [row for row in every if _gpus(row) > 1]
    speeds = {
        (row["model"], row["lease"]): row["tflops"]
        for row in every
        if row["way"] == "bridge" and _gpus(row) == 1
    }

    def cells(model: str, bridge: dict[str, Any]) -> list[str]:
        found = (
            speeds[name, bridge["lease"]]
            for name in _shorter(bridge["model"])
            if (name, bridge["lease"]) in speeds
        )
        one = next(found, 0.0)
        share = f"{bridge['tflops'] / one:.0%}" if one and bridge["tflops"] else ""
        return [model, str(_gpus(bridge)), share]

    heads = ("model and layout", "GPUs", "of one GPU's TFLOP/s", *_HEADS)
    return "\n".join([*_lines(heads, rows, cells), "", *_notes(rows), ""])


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8"))
    return rows


def _gpus(row: dict[str, Any]) -> int:
    return int(row.get("gpus", 1))


def _shorter(name: str) -> list[str]:
    """``llama-8b-tp4-sp``: ``llama-8b-tp4``, ``llama-8b``, ``llama``."""
    parts = name.split("-")
    return ["-".join(parts[:length]) for length in range(len(parts) - 1, 0, -1)]


def _leases(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["lease"] for row in rows if row["way"] == "bridge"))


def _notes(rows: list[dict[str, Any]]) -> list[str]:
    return [f"({mark}) {lease}." for mark, lease in zip(_MARKS, _leases(rows), strict=False)]


def _lines(
    heads: tuple[str, ...],
    rows: list[dict[str, Any]],
    first: Callable[[str, dict[str, Any]], list[str]],
) -> list[str]:
    """The table's lines; ``first`` makes the cells before those of every row."""
    leases = _leases(rows)
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for model in dict.fromkeys(row["model"] for row in rows if row["way"] == "bridge"):
        ours = {row["way"]: row for row in rows if row["model"] == model}
        bridge = ours["bridge"]
        mark = _MARKS[leases.index(bridge["lease"])]
        # Only what was measured in the same lease can be compared.
        found = {way: ours[way] for way in WAYS if way in ours}
        same = {way: row for way, row in found.items() if row["lease"] == bridge["lease"]}
        cells = first(f"`{model}` ({mark})", bridge)
        cells += [_time(bridge), _share(bridge), _speed(bridge)]
        cells += [_time(same.get(way)) + _beside(way, same) for way in WAYS]
        cells.append(_ratio(same.get("te"), bridge))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _beside(way: str, rows: dict[str, dict[str, Any]]) -> str:
    """How many times faster Transformer Engine is with accel_bridge beside it."""
    pair = [rows[name]["milliseconds"] for name in ("te", "beside") if name in rows]
    return f", {pair[0] / pair[1]:.2f}x" if way == "beside" and len(pair) == 2 and all(pair) else ""


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
