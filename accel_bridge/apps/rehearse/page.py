"""The picture of memory over a step, and the page around it."""

from __future__ import annotations

import base64
import html
import io
from typing import Any, Final

from accel_bridge.apps.rehearse.devices import GB
from accel_bridge.apps.rehearse.memory import CLASSES
from accel_bridge.apps.rehearse.report import Outcome, collectives
from accel_bridge.process.extras import require

#: Colours of the classes, from below: what stays in blues and greys, what comes and goes in warm.
_COLOURS: Final = (
    *("#1f4e79", "#2e75b6", "#9dc3e6", "#7f7f7f", "#bfbfbf"),
    *("#404040", "#f4a259", "#5b8e7d", "#bc4b51"),
)
_STYLE: Final = (
    "body{font:15px sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "td,th{padding:.2em .8em;text-align:right}td:first-child,th:first-child{text-align:left}"
    "img{max-width:100%}table{border-collapse:collapse;margin:1em 0}"
    "tr{border-bottom:1px solid #ddd}"
)


def draw(outcome: Outcome) -> bytes:
    """Memory of the fullest rank over its last step, stacked by class, as PNG."""
    require("matplotlib")
    from matplotlib.figure import Figure

    rank = outcome.fullest
    rows = rank["curve"]
    figure = Figure(figsize=(10, 4.5), dpi=120)
    axes = figure.add_subplot()
    used = [place for place in range(len(CLASSES)) if any(row[place] for row in rows)]
    axes.stackplot(
        range(len(rows)),
        [[row[place] / GB for row in rows] for place in used],
        labels=[CLASSES[place] for place in used],
        colors=[_COLOURS[place] for place in used],
    )
    beside = rank["needs_bytes"] - rank["peak_bytes"]
    axes.axhline((outcome.device.memory - beside) / GB, color="#c00000", linewidth=1)
    axes.set_ylabel("GB")
    axes.set_xlabel("allocations of one step")
    axes.set_title(
        f"rank {rank['rank']} on {outcome.device.title}: peak {rank['peak_bytes'] / GB:.1f} GB, "
        f"needs {rank['needs_bytes'] / GB:.1f} of {outcome.device.memory / GB:.1f} GB"
    )
    axes.margins(x=0)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": "accel-bridge rehearse"})
    return file.getvalue()


def page(outcome: Outcome, picture: bytes, advice: list[dict[str, Any]]) -> bytes:
    """Everything in one file."""
    full = outcome.fullest
    memory = [[name, f"{full['memory'].get(name, 0) / GB:.2f}"] for name in CLASSES]
    ranks = [
        [
            str(one["rank"]),
            str(len(one["stands_for"])),
            f"{one['parameters']:,}",
            f"{one['peak_bytes'] / GB:.2f}",
            f"{one['needs_bytes'] / GB:.2f}",
            "yes" if one["fits"] else "no",
        ]
        for one in outcome.ranks
    ]
    messages = [
        [
            row["kind"],
            row["group"],
            str(row["ranks"]),
            str(row["count"]),
            f"{row['bytes'] / GB:.3f}",
        ]
        for row in collectives(full)
    ]
    parts = [
        f"<title>accel-bridge rehearse</title><style>{_STYLE}</style>",
        f"<h1>Rehearsed for {html.escape(outcome.device.title)}</h1>",
        f"<p><code>{html.escape(' '.join(outcome.command))}</code></p>",
        *(f"<p><b>{html.escape(problem)}</b></p>" for problem in outcome.problems),
        *(f"<p>{html.escape(note)}</p>" for note in outcome.notes),
        f'<img alt="memory over a step" src="data:image/png;base64,'
        f'{base64.b64encode(picture).decode()}">',
        _table(["rank", "stands for", "parameters", "peak GB", "needs GB", "fits"], ranks),
        f"<h2>At the peak of rank {full['rank']}</h2>",
        _table(["class", "GB"], memory),
        "<h2>Collectives of one step</h2>",
        _table(["kind", "group", "ranks", "count", "GB"], messages),
        f"<p>{html.escape(outcome.estimate().text())}</p>",
    ]
    if advice:
        from accel_bridge.apps.rehearse.advice import table

        parts.append(f"<h2>What would fit</h2><pre>{html.escape(table(advice))}</pre>")
    return ("<!doctype html><meta charset=utf-8>" + "\n".join(parts)).encode()


def _table(head: list[str], rows: list[list[str]]) -> str:
    def line(cells: list[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"
