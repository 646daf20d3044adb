"""The tables of docs/performance.md, from the measured rows in docs/performance.json."""

from __future__ import annotations

import json
from collections import Counter
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
    """A line for each model of one GPU in the lease that measured most of them."""
    rows = [row for row in _rows() if _gpus(row) == 1 and row["lease"] == _main_lease()]
    lines = _lines(("model", *_HEADS), rows, lambda model, _: [model])
    return "\n".join([*lines, "", *_notes(rows), ""])


def layouts_table() -> str:
    """A line for each layout of several GPUs, with its share of one GPU's speed."""
    every = [row for row in _rows() if row["lease"] == _main_lease()]
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


def earlier_table() -> str:
    """Models and layouts that other leases measured."""
    rows = [row for row in _rows() if row["lease"] != _main_lease() and row["way"] != "products"]
    heads = ("model", "GPUs", *_HEADS)
    lines = _lines(heads, rows, lambda model, row: [model, str(_gpus(row))])
    return "\n".join([*lines, "", *_notes(rows), ""])


def _main_lease() -> str:
    """The lease in which most models were measured."""
    found = Counter(row["lease"] for row in _rows() if row["way"] == "bridge")
    return max(found, key=lambda lease: (found[lease], lease), default="")


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


def asked_table() -> str:
    """A line for each number that was asked: what was measured, and why where it is not reached."""
    rows = {(row["model"], row["way"]): row for row in _rows()}
    lines = [
        "| compared with | model | asked | measured | |",
        "|---|---|---|---|---|",
    ]
    for title, ours, others, asked in ASKED:
        row, other = rows.get(ours), rows.get(others)
        if not _comparable(row, other):
            continue
        assert row is not None
        assert other is not None
        ratio = other["milliseconds"] / row["milliseconds"]
        told = _told(ratio, asked, row, other["milliseconds"] / asked, other)
        lines.append(f"| {title} | {_named(row)} | {asked:.2f}x | {ratio:.2f}x | {told} |")
    lines += [line for found in (_speed_line(rows), _window_line(rows)) for line in found]
    for model in dict.fromkeys(row["model"] for row in _rows() if row["way"] == "beside"):
        row, other = rows[model, "beside"], rows.get((model, "te"))
        if not _comparable(row, other):
            continue
        assert other is not None
        ratio = other["milliseconds"] / row["milliseconds"]
        own = rows.get((model, "bridge"), row)
        told = _told(ratio, ASKED_BESIDE, own, other["milliseconds"] / ASKED_BESIDE, other)
        lines.append(
            f"| TE, both together | {_named(row)} | {ASKED_BESIDE:.2f}x | {ratio:.2f}x | {told} |"
        )
    lines += _memory_lines(rows)
    return "\n".join([*lines, ""])


def _named(row: dict[str, Any]) -> str:
    """The model, with a star where another lease than the table's measured it."""
    return f"`{row['model']}`" + ("" if row["lease"] == _main_lease() else " *")


def _comparable(row: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    """Whether both were measured, in one lease."""
    if row is None or other is None or row["lease"] != other["lease"]:
        return False
    return bool(row["milliseconds"] and other["milliseconds"])


def _told(
    ratio: float, asked: float, row: dict[str, Any], allowed: float, other: dict[str, Any] | None
) -> str:
    """``reached``, or what the step is made of and what it would have to take."""
    if round(ratio, 2) >= asked:
        return "reached"
    kernels = row.get("kernels")
    if not kernels:
        return "not reached"
    step, fixed = row["milliseconds"], kernels["products"] + kernels["attention"]
    rest, left = step - fixed, allowed - fixed
    said = (
        f"not reached: {allowed:.0f} ms are needed. Products and attention take {fixed:.0f}; "
        f"everything else takes {rest:.0f} ({_host(row):.0f} of it the host), "
    )
    said += f"{left:.0f} are left for it" if left > 0 else "and nothing is left for it"
    theirs = (other or {}).get("kernels")
    if other is not None and theirs:
        own = other["milliseconds"] - theirs["products"] - theirs["attention"]
        said += f"; {own:.0f} in the other"
    return said


def _host(row: dict[str, Any]) -> float:
    """Milliseconds of a step in which the device computes nothing."""
    return max(0.0, float(row["milliseconds"]) - float(row["kernels"]["device"]))


def _speed_line(rows: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    key, asked = ASKED_SPEED
    row = rows.get(key)
    if row is None or not row["tflops"]:
        return []
    allowed = row["milliseconds"] * row["tflops"] / asked
    told = _told(row["tflops"] / asked, 1.0, row, allowed, None)
    return [
        f"| TFLOP/s by Megatron's count | `{key[0]}` | {asked:.0f} | {row['tflops']:.0f} | {told} |"
    ]


def _window_line(rows: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    """Attention of a window in training, as a share of full attention's."""
    model, full, asked = ASKED_WINDOW
    pair = [(rows.get((name, "bridge")) or {}).get("kernels") for name in (model, full)]
    if not all(pair):
        return []
    assert pair[0] is not None
    assert pair[1] is not None
    own, whole = pair[0]["attention"], pair[1]["attention"]
    told = "reached" if round(own / whole, 2) <= asked else "not reached"
    said = f"{own / whole:.2f}x ({own:.1f} of {whole:.1f} ms)"
    return [f"| full attention's time | `{model}` | at most {asked:.2f}x | {said} | {told} |"]


def _memory_lines(rows: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    """The largest share of Transformer Engine's memory."""
    shares = {
        model: row["gigabytes"] / rows[model, "te"]["gigabytes"]
        for (model, way), row in rows.items()
        if way == "bridge" and _comparable(row, rows.get((model, "te")))
    }
    if not shares:
        return []
    most = max(shares, key=lambda model: shares[model])
    told = "reached" if round(shares[most], 2) <= 1.0 else "not reached"
    said = f"{min(shares.values()):.2f} to {shares[most]:.2f}x"
    return [
        f"| TE's memory | {len(shares)} models, most `{most}` | at most 1.00x | {said} | {told} |"
    ]


def parts_table() -> str:
    """What a step of each profiled training is made of, milliseconds."""
    every = _rows()
    alone = {row["model"]: row for row in every if row["way"] == "products"}
    heads = ("model", "way", "step", "device", "host", "products", "attention")
    heads += ("FP8 casts", "optimizer", "rest", "launches", "cuBLAS alone")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in every:
        kernels = row.get("kernels")
        if not kernels or not row["milliseconds"]:
            continue
        work = row.get("operations") or {}
        cells = [f"`{row['model']}`", "TE" if row["way"] == "te" else "accel_bridge"]
        cells += [f"{row['milliseconds']:.1f}", f"{kernels['device']:.1f}", f"{_host(row):.1f}"]
        for kind in ("products", "attention"):
            cells.append(f"{kernels[kind]:.1f}" + _rate(work.get(kind), kernels[kind], row))
        cells += [f"{kernels[kind]:.1f}" for kind in ("casts", "optimizer")]
        cells += [f"{kernels['rest'] + kernels['communication']:.1f}", f"{kernels['launches']:.0f}"]
        found = alone.get(row["model"])
        same = found is not None and found["lease"][:10] == row["lease"][:10]
        cells.append(
            f"{found['milliseconds']:.1f} ({found['tflops']:.0f})" if found and same else ""
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _rate(work: float | None, milliseconds: float, row: dict[str, Any]) -> str:
    """TFLOP/s of one GPU, where the arithmetic is known."""
    return f" ({work / _gpus(row) / milliseconds * 1e3:.0f})" if work and milliseconds else ""


def before_table() -> str:
    """The tree before Megatron took its own Transformer Engine code, in the same lease."""
    rows = {(row["model"], row["way"]): row for row in _rows()}
    lines = ["| model | before | now | time | memory |", "|---|---|---|---|---|"]
    for (model, way), old in rows.items():
        new = rows.get((model, "bridge"))
        if way != "before" or not _comparable(new, old):
            continue
        assert new is not None
        times = new["milliseconds"] / old["milliseconds"]
        memory = new["gigabytes"] / old["gigabytes"]
        cells = (f"{_time(one)} ({_share(one)})" for one in (old, new))
        lines.append(f"| `{model}` | {' | '.join(cells)} | {times:.3f}x | {memory:.3f}x |")
    return "\n".join([*lines, ""])
