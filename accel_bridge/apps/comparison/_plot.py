"""The curves of two recordings as a PNG."""

from __future__ import annotations

import io
import math

from accel_bridge.apps.comparison._compare import Comparison
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
    figure, (curves, differences) = pyplot.subplots(
        2, 1, figsize=(8, 6), sharex=True, layout="constrained", height_ratios=(3, 2)
    )
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


def _drawable(values: list[float]) -> list[float]:
    return [value if abs(value) < CEILING else math.nan for value in values]


def _label(title: str) -> str:
    """A recording's title; matplotlib reads dollars as formulas."""
    return printable(title if len(title) <= LABEL else title[:LABEL] + "...").replace("$", r"\$")
