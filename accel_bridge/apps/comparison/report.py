"""A comparison to read: table, verdict, JSON document, curves as a PNG, and HTML page."""

from __future__ import annotations

import io
import math
from typing import Any, Final

from accel_bridge.apps._html import finite, image, page, paragraphs, table
from accel_bridge.apps.comparison import LATER, RATIO, Comparison, Departure, Kind, depths
from accel_bridge.errors import printable
from accel_bridge.process.extras import require
from accel_bridge.recording import Recording

#: Stands in every picture and page, so that a later one may take its place.
MADE_BY = "accel-bridge parity"

#: The axis of differences is logarithmic down to this, and linear from here to zero.
FLOOR = 1e-9
#: Numbers beyond this are left out: an axis that reaches them shows nothing else.
CEILING = 1e30
#: Characters of a recording's title in the legend.
LABEL = 80


def draw(comparison: Comparison) -> bytes:
    """Losses of both runs above, their relative differences below: bytes of a PNG.

    :raises MissingPackage: matplotlib is not installed.
    """
    require("matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    rows = comparison.rows
    steps = [row.a.number for row in rows]
    figure = pyplot.figure(figsize=(13, 6), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(8, 4), height_ratios=(3, 2))
    curves = figure.add_subplot(grid[0, 0])
    differences = figure.add_subplot(grid[1, 0], sharex=curves)
    _draw_depths(figure.add_subplot(grid[:, 1]), comparison)
    a, b = comparison.a, comparison.b
    losses = _drawable([row.a.loss for row in rows])
    curves.plot(steps, losses, color="tab:blue", lw=3, label=f"A: {_label(a.title)}")
    losses = _drawable([row.b.loss for row in rows])
    curves.plot(steps, losses, color="tab:orange", ls="--", label=f"B: {_label(b.title)}")
    if comparison.third is not None:
        third = _drawable([step.loss for step in comparison.third.steps])
        curves.plot(steps, third, color="grey", lw=1, label="third: float32")
    curves.set(ylabel="loss (nats per token)")
    curves.legend()
    limits = comparison.limits
    for values, limit, color, label in (
        ([row.loss for row in rows], limits.loss, "tab:green", "loss"),
        ([row.gradient_norm for row in rows], limits.gradient_norm, "tab:purple", "gradient norm"),
    ):
        shown = _drawable(values)
        differences.plot(steps, shown, color=color, marker=".", label=label, clip_on=False)
        differences.axhline(limit, color=color, ls=":", label=f"limit {limit:g}")
    # Logarithmic down to the floor, and from there to zero a straight line.
    differences.set_yscale("symlog", linthresh=FLOOR)
    differences.set_ylim(bottom=0)
    differences.set(xlabel="step", ylabel="relative difference")
    differences.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    margin = max(0.5, (steps[-1] - steps[0]) / 40)
    differences.set_xlim(steps[0] - margin, steps[-1] + margin)
    differences.legend(ncols=2, fontsize="small")
    for axes in (curves, differences):
        axes.grid(alpha=0.3)
    first = comparison.first_row
    if first is not None:
        for axes in (curves, differences):
            axes.axvline(first.a.number, color="tab:red", lw=1)
    output = io.BytesIO()
    figure.savefig(output, format="png", dpi=100, metadata={"Software": MADE_BY})
    pyplot.close(figure)
    return output.getvalue()


def _draw_depths(axes: Any, comparison: Comparison) -> None:
    """Along the network and the steps: each tensor's difference as a multiple of its limit."""
    from matplotlib.colors import LogNorm

    names, steps, found = depths(comparison)
    if not found:
        axes.set_axis_off()
        return
    multiples = [
        [min(max(found.get((row, column), math.nan), 1e-3), 1e3) for column in range(len(steps))]
        for row in range(len(names))
    ]
    # Up to the limit light, and red from there on.
    image = axes.imshow(multiples, aspect="auto", cmap="RdBu_r", norm=LogNorm(1e-3, 1e3))
    axes.figure.colorbar(image, ax=axes, label="difference / limit", shrink=0.7)
    axes.set_xticks(range(len(steps)), [str(step) for step in steps])
    every = max(1, len(names) // 14)
    ticks = range(0, len(names), every)
    axes.set_yticks(ticks, [_label(names[row][1][-34:]) for row in ticks], fontsize=6)
    for row in range(1, len(names)):
        if names[row][0] != names[row - 1][0]:
            axes.axhline(row - 0.5, color="black", lw=0.6)
    first = comparison.first
    if first is not None:
        row, column = names.index((first.kind, first.name)), steps.index(first.step)
        axes.plot(column, row, marker="s", ms=9, mfc="none", mec="white")
        axes.set_title(_label(f"first: {first.kind} {first.name}"), fontsize=7)
    axes.set(xlabel="step", ylabel="weights, outputs, gradients, weight gradients")


def _drawable(values: list[float]) -> list[float]:
    return [value if abs(value) < CEILING else math.nan for value in values]


def _label(title: str) -> str:
    """A recording's title; matplotlib reads dollars as formulas."""
    return printable(title if len(title) <= LABEL else title[:LABEL] + "...").replace("$", r"\$")


#: Raised when a field of the JSON document changes its meaning.
FORMAT: Final = 1
#: Headings of :func:`step_cells`.
STEP_COLUMNS: Final = (
    "step",
    "loss A",
    "loss B",
    "difference",
    "grad norm A",
    "grad norm B",
    "difference",
    "s/step A",
    "s/step B",
    "",
)
#: Headings of :func:`departure_cells`.
DEPARTURE_COLUMNS: Final = ("step", "kind", "name", "rms A", "rms B", "difference", "limit")
#: Rows of long tables that are shown; the JSON document has all.
SHOWN: Final = 30
#: Departing tensors that are shown.
DEPARTURES_SHOWN: Final = 8

_MEANING: Final = {
    Kind.AGREE: "the runs agree",
    Kind.ROUNDING: "the runs differ by rounding only: both are as far from the run in float32",
    Kind.ACCUMULATION: "the difference is as large as sums in a lower precision make it",
    Kind.DEFECT: "a real defect: rounding does not explain the difference",
    Kind.NOT_FINITE: "a loss or a gradient norm is not a finite number",
}


def facts(comparison: Comparison) -> list[tuple[str, str]]:
    """What was compared, and by which rule: (label, text)."""
    limits = comparison.limits
    lines = [
        ("A", _describe(comparison.a, comparison.names[0])),
        ("B", _describe(comparison.b, comparison.names[1])),
    ]
    if comparison.third is not None:
        lines.append(("third", _describe(comparison.third, "run in float32")))
    lines += [
        ("notes A", "; ".join(comparison.a.notes) or "none"),
        ("notes B", "; ".join(comparison.b.notes) or "none"),
        (
            "rule",
            f"relative difference at every step: loss {limits.loss:g}, gradient norm "
            f"{limits.gradient_norm:g}; tensors at the first step {limits.tensor:g}, later ones "
            f"{limits.tensor * LATER:g}",
        ),
    ]
    if comparison.third is not None:
        text = f"neither may be more than {RATIO:g} times as far from the third run as the other"
        lines.append(("", text))
    lines.append(("tensors", f"{comparison.checked} compared"))
    for letter, only in zip("AB", comparison.only, strict=True):
        if only:
            more = f" and {len(only) - 3} more" if len(only) > 3 else ""
            lines.append((f"only in {letter}", ", ".join(only[:3]) + more))
    return lines


def verdict(comparison: Comparison) -> list[str]:
    """The verdict: PASS or FAIL, the first step and the first tensor that depart, and why."""
    worst_loss = max(row.loss for row in comparison.rows)
    worst_norm = max(row.gradient_norm for row in comparison.rows)
    found = "PASS" if comparison.passed else "FAIL"
    lines = [
        f"{found}: {_doubt(comparison) or _MEANING[comparison.kind]}",
        f"largest relative difference over {len(comparison.rows)} steps: loss {worst_loss:.2g}, "
        f"gradient norm {worst_norm:.2g}",
    ]
    row = comparison.first_row
    first = comparison.first
    if row is not None and first is None:
        lines.append(f"first step beyond the rule: {row.a.number}")
    if comparison.kind is Kind.NOT_FINITE:
        lines += _not_finite(comparison)
    if first is not None:
        lines += _explain(first, comparison)
    elif row is not None and comparison.kind is not Kind.NOT_FINITE:
        lines.append(
            "every tensor that was recorded agrees: the difference grows from rounding, or between "
            "the recorded steps (record both with a smaller --every)"
        )
    judged = comparison.kind in (Kind.ACCUMULATION, Kind.DEFECT)
    if judged and comparison.third is None and comparison.a.precision != "float32":
        lines.append("with --third FILE, a run in float32, the comparison tells which one is off")
    return lines


def _doubt(comparison: Comparison) -> str | None:
    """Why runs that part may both be right, and how to tell; None where they may not."""
    a, b = comparison.a, comparison.b
    if comparison.kind not in (Kind.ACCUMULATION, Kind.DEFECT):
        return None
    training = a.identity.get("training", {})
    elsewhere = a.layout != b.layout or a.about.get("device") != b.about.get("device")
    if elsewhere and any(training.get(name) for name in ("attention_dropout", "hidden_dropout")):
        return (
            "dropout is on, and its masks differ between layouts and devices: record both with "
            "--attention-dropout 0 --hidden-dropout 0"
        )
    if training.get("fp8") and not (a.limits or b.limits):
        return (
            "FP8 rounds more than the limits of bfloat16 allow: record one with --limits, which "
            "measures what rounding moves"
        )
    return None


def _not_finite(comparison: Comparison) -> list[str]:
    """Where each run has its first number that is not finite."""
    lines = []
    for letter, name, run in zip("AB", comparison.names, (comparison.a, comparison.b), strict=True):
        for step in run.steps:
            if not (math.isfinite(step.loss) and math.isfinite(step.gradient_norm)):
                lines.append(
                    f"{letter} ({name}) at step {step.number}: loss {step.loss:.6g}, gradient norm "
                    f"{step.gradient_norm:.6g}"
                )
                break
    if len(lines) == 2:
        lines.append("both runs have failed, so they prove nothing about each other")
    return lines


def _explain(first: Departure, comparison: Comparison) -> list[str]:
    row = comparison.first_row
    losses = f"; loss or gradient norm: step {row.a.number}" if row is not None else ""
    lines = [f"first tensor beyond the rule: step {first.step}, {first.where}{losses}"]
    size = f"it differs by {first.size:.2g} of its size (limit {first.limit:.2g})"
    if first.kind == "weight" and first.before:
        what = "steps" if first.before == "learning rate" else "sizes"
        size = f"their {what} differ by the factor {1 + first.distance.slope:.9g}"
    elif first.distance.systematic:
        size += f", mostly by the factor {1 + first.distance.slope:.6g}"
    lines.append(size)
    if first.isolated:
        lines.append("the same tensor of earlier layers agrees: it is not the precision of all")
    if first.culprit:
        name = comparison.names["AB".index(first.culprit)]
        lines.append(f"{first.culprit} ({name}) is the one that is further from float32")
    return lines


def step_cells(comparison: Comparison) -> list[list[str]]:
    """The steps as table cells; of many, evenly spaced ones and all that depart first."""
    rows = comparison.rows
    keep = max(1, math.ceil(len(rows) / SHOWN))
    first = comparison.first_row
    return [
        [
            str(row.a.number),
            f"{row.a.loss:.6f}",
            f"{row.b.loss:.6f}",
            f"{row.loss:.1e}",
            f"{row.a.gradient_norm:.5f}",
            f"{row.b.gradient_norm:.5f}",
            f"{row.gradient_norm:.1e}",
            f"{row.a.seconds:.4f}",
            f"{row.b.seconds:.4f}",
            "departs" if row.departs else "",
        ]
        for index, row in enumerate(rows)
        if index % keep == 0 or index == len(rows) - 1 or row is first
    ]


def departure_cells(comparison: Comparison) -> list[list[str]]:
    """The first departing tensors as table cells."""
    return [
        [
            str(item.step),
            item.kind,
            item.name,
            f"{item.a.moments.rms:.6g}",
            f"{item.b.moments.rms:.6g}",
            f"{item.size:.1e}",
            f"{item.limit:.1e}",
        ]
        for item in comparison.departures[:DEPARTURES_SHOWN]
    ]


def as_json(comparison: Comparison) -> dict[str, object]:
    """The comparison as a JSON document; numbers that are not finite are strings."""
    first = comparison.first
    row = comparison.first_row
    return {
        "format": FORMAT,
        "passed": comparison.passed,
        "kind": comparison.kind.value,
        "verdict": verdict(comparison),
        "a": _recording_as_json(comparison.a, comparison.names[0]),
        "b": _recording_as_json(comparison.b, comparison.names[1]),
        "third": None
        if comparison.third is None
        else _recording_as_json(comparison.third, "third"),
        "first_step": None if row is None else row.a.number,
        "first_tensor": None if first is None else _departure_as_json(first),
        "departures": [_departure_as_json(item) for item in comparison.departures],
        "tensors": comparison.checked,
        "only_in_a": list(comparison.only[0]),
        "only_in_b": list(comparison.only[1]),
        "steps": [
            {
                "step": row.a.number,
                "loss": [finite(row.a.loss), finite(row.b.loss)],
                "loss_difference": finite(row.loss),
                "gradient_norm": [finite(row.a.gradient_norm), finite(row.b.gradient_norm)],
                "gradient_norm_difference": finite(row.gradient_norm),
                "seconds": [row.a.seconds, row.b.seconds],
                "departs": row.departs,
            }
            for row in comparison.rows
        ],
    }


def as_html(comparison: Comparison, picture: bytes | None) -> str:
    """The comparison as one HTML page without any other file.

    :param picture: the curves as PNG.
    """
    lines = verdict(comparison)
    parts = [paragraphs(lines), table(("", ""), facts(comparison))]
    if picture is not None:
        parts.append(image("loss of both runs", picture))
    if comparison.departures:
        parts.append("<h2>Tensors beyond the rule</h2>")
        parts.append(table(DEPARTURE_COLUMNS, departure_cells(comparison)))
    parts += ["<h2>Steps</h2>", table(STEP_COLUMNS, step_cells(comparison))]
    return page(MADE_BY, lines[0], parts, verdict="pass" if comparison.passed else "fail")


def _describe(recording: Recording, name: str) -> str:
    about = recording.about
    return (
        f"{name}: {recording.title}; {about.get('device name', '?')}, torch "
        f"{about.get('torch', '?')}, {recording.seconds:.4f} s/step, {about.get('recorded', '?')}"
    )


def _recording_as_json(recording: Recording, name: str) -> dict[str, object]:
    return {
        "name": name,
        "precision": recording.precision,
        "layout": dict(recording.layout),
        "about": dict(recording.about),
        "notes": list(recording.notes),
        "seconds_per_step": recording.seconds,
    }


def _departure_as_json(item: Departure) -> dict[str, object]:
    return {
        "step": item.step,
        "kind": item.kind,
        "name": item.name,
        "where": item.where,
        "difference": finite(item.size),
        "factor": finite(1 + item.distance.slope) if item.distance.systematic else None,
        "limit": finite(item.limit),
        "culprit": item.culprit or None,
    }
