"""The curves of two recordings as a PNG."""

from __future__ import annotations

import io
import math
from typing import Any

from accel_bridge.apps.comparison._compare import Comparison, depths
from accel_bridge.errors import BridgeError, printable
from accel_bridge.process.extras import install

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

    :raises BridgeError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise BridgeError(
            "Pictures need matplotlib, which is not installed.",
            evidence=str(error),
            next=f"{install('report')}, or leave out --png and --html",
        ) from error
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
    table = [
        [min(max(found.get((row, column), math.nan), 1e-3), 1e3) for column in range(len(steps))]
        for row in range(len(names))
    ]
    # Up to the limit light, and red from there on.
    image = axes.imshow(table, aspect="auto", cmap="RdBu_r", norm=LogNorm(1e-3, 1e3))
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
