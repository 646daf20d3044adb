"""Runs as a PNG: losses above, throughput below."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from accel_bridge.apps.plot._run import Point, Run, is_drawable, smoothed
from accel_bridge.apps.plot._table import letter
from accel_bridge.errors import printable
from accel_bridge.process.extras import require

#: Stands in every picture and page, so that a later one may take its place.
MADE_BY: Final = "accel-bridge plot"
#: Characters of a run's name in the legend.
_NAME: Final = 60
#: Few points are marked: a line of one or two of them cannot be seen.
_MARKED: Final = 30
#: Share of the points that the axis of times shows: the first iterations take many times as long.
_SHOWN: Final = 0.98
_STYLES: Final = ("-", "--", "-.", ":")


def draw(
    runs: Sequence[Run], over: int, *, title: str = "", marks: Sequence[tuple[int, str]] = ()
) -> bytes:
    """Losses above, throughput below: bytes of a PNG.

    The values as they were logged are drawn thin and pale, their means over ``over`` points bold.

    :param marks: (iteration, what happened there).
    :raises MissingPackage: matplotlib is not installed.
    """
    require("matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    lower = _throughput(runs)
    figure, axes = pyplot.subplots(
        2 if lower else 1,
        1,
        figsize=(8, 6 if lower else 4.5),
        sharex=True,
        squeeze=False,
        layout="constrained",
        gridspec_kw={"height_ratios": (3, 2)} if lower else None,
    )
    panels = [panel[0] for panel in axes]
    _curves(panels[0], runs, over, lambda point: point.loss, labels=True)
    panels[0].set(ylabel="loss (nats per token)", title=_label(title, 90))
    if lower:
        name, value = lower
        _curves(panels[1], runs, over, value, warm_up=True)
        _limit(panels[1], [value(point) for run in runs for point in run.points])
        panels[1].set(ylabel=name)
    for iteration, text in marks:
        for number, panel in enumerate(panels):
            label = text if number == 0 else None
            panel.axvline(iteration, color="grey", linestyle=":", label=label)
    for panel in panels:
        panel.grid(alpha=0.3)
    panels[-1].set(xlabel="iteration")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    first = min(run.points[0].iteration for run in runs)
    last = max(run.last for run in runs)
    margin = max(0.5, (last - first) / 40)
    panels[-1].set_xlim(first - margin, last + margin)
    panels[0].legend(fontsize="small", loc="best")
    output = io.BytesIO()
    figure.savefig(output, format="png", dpi=110, metadata={"Software": MADE_BY})
    pyplot.close(figure)
    return output.getvalue()


def _throughput(runs: Sequence[Run]) -> tuple[str, Callable[[Point], float]] | None:
    """(what the lower panel shows, its value): tokens a second where every run knows them."""
    if all(run.tokens for run in runs):
        return "tokens/s", lambda point: math.nan if point.tokens is None else point.tokens
    if any(run.seconds for run in runs):
        return "s/step", lambda point: math.nan if point.seconds is None else point.seconds
    return None


def _curves(
    axes: Any,
    runs: Sequence[Run],
    over: int,
    value: Callable[[Point], float],
    *,
    labels: bool = False,
    warm_up: bool = False,
) -> None:
    for place, run in enumerate(runs):
        color = f"C{place % 10}"
        style = _STYLES[place % len(_STYLES)]
        numbers = [point.iteration for point in run.points]
        raw = [value(point) for point in run.points]
        raw = [one if is_drawable(one) else math.nan for one in raw]
        marker = "." if len(numbers) <= _MARKED else None
        name = f"{letter(place)}: " if len(runs) > 1 else ""
        name += _label(run.name, _NAME)
        if over > 1:
            axes.plot(numbers, raw, color=color, alpha=0.3, lw=0.8)
            name += f" (mean of {over})"
        if warm_up and len(raw) > 1:
            raw[0] = math.nan  # it takes many times as long, and would spoil the means after it
        means = smoothed(raw, over)
        label = name if labels else None
        axes.plot(numbers, means, color=color, ls=style, lw=1.8, marker=marker, label=label)
    if not any(is_drawable(value(point)) for run in runs for point in run.points):
        axes.text(0.5, 0.5, "no finite number", ha="center", transform=axes.transAxes)
        axes.set_yticks([])


def _limit(axes: Any, values: Sequence[float]) -> None:
    """From zero to what nearly all points reach: a warm-up must not flatten the rest."""
    known = sorted(value for value in values if is_drawable(value))
    if known:
        top = known[min(len(known) - 1, int(_SHOWN * len(known)))]
        axes.set_ylim(0, (top or 1.0) * 1.15)


def _label(name: str, length: int) -> str:
    """A name whose end counts, as a path's does; matplotlib reads dollars as formulas."""
    short = name if len(name) <= length else f"...{name[3 - length :]}"
    return printable(short).replace("$", r"\$")
