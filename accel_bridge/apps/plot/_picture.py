"""Runs as a PNG: losses above, throughput below."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from accel_bridge.apps.plot._read import Point, Run, is_drawable, smoothed, tail
from accel_bridge.errors import printable
from accel_bridge.process.extras import require

# Runs in numbers: the table, what is to be known about it, and the JSON document.

#: Raised when a field of the JSON document changes its meaning.
FORMAT: Final = 1
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NONE: Final = "-"


def letter(place: int) -> str:
    """How a run is called in short: A, B, ..., Z, A2."""
    return _LETTERS[place % 26] + ("" if place < 26 else str(place // 26 + 1))


def columns(runs: Sequence[Run]) -> list[str]:
    """Headings of :func:`rows`; differences only where there is something to compare."""
    found = ["", "name", "iterations", "loss", *_measured(runs)]
    if len(runs) > 1:
        found += [f"loss - A at {common(runs)}" if common(runs) else "loss - A", "s/step : A"]
    return found


#: Heading -> the median of a run, and how it is written.
_MEDIANS: Final[dict[str, tuple[Callable[[Run], float | None], str]]] = {
    "s/step": (lambda run: run.seconds, ".4g"),
    "tokens/s": (lambda run: run.tokens, ",.0f"),
    "TFLOP/s": (lambda run: run.tflops, ".3g"),
}


def _measured(runs: Sequence[Run]) -> list[str]:
    """Which medians any run knows; Megatron logs 0 TFLOP/s where it knows none."""
    return [name for name, (value, _) in _MEDIANS.items() if any(value(run) for run in runs)]


def rows(runs: Sequence[Run], over: int) -> list[list[str]]:
    """One row for each run; losses are averaged over ``over`` points."""
    return [[letter(place), *_cells(run, runs, over)] for place, run in enumerate(runs)]


def pair_columns(sides: Sequence[str]) -> list[str]:
    """Headings of :func:`pair_rows`; ``sides`` names the two machines."""
    left, right = sides
    return [
        "name",
        *(f"loss {side}" for side in sides),
        *(f"s/step {side}" for side in sides),
        f"loss {right} - {left}",
    ]


def pair_rows(runs: Sequence[Run], names: Sequence[str], over: int) -> list[list[str]]:
    """A row for each two runs: one training on two machines, compared where both have been."""
    found = []
    for name, left, right in zip(names, runs[::2], runs[1::2], strict=True):
        at = common((left, right))
        losses = [run.loss(over, at) if at else math.nan for run in (left, right)]
        found.append(
            [
                name,
                *(_number(loss, ".4f") for loss in losses),
                *(_number(run.seconds, ".4g") for run in (left, right)),
                _number(losses[1] - losses[0], "+.4f"),
            ]
        )
    return found


def notes(runs: Sequence[Run], over: int) -> list[str]:
    """What the numbers are, and what each run's reader should know."""
    last = tail(over)
    mean = f"the mean of the last {last} logged iterations" if last > 1 else "the last one logged"
    measured = ", ".join(_measured(runs)).replace("TFLOP/s", "TFLOP/s (a device)")
    lines = [f"loss: {mean}" + (f"; {measured}: medians" if measured else "")]
    if len({run.last for run in runs}) > 1:
        at = common(runs)
        lines.append(
            f"the runs end at different iterations; losses are compared at {at}, the last that "
            "all of them reached"
            if at
            else "the runs have no iteration in common; their losses are not compared"
        )
    lines += [f"{letter(place)}: {note}" for place, run in enumerate(runs) for note in run.notes]
    return lines


def common(runs: Sequence[Run]) -> int | None:
    """The iteration where losses are compared: the last that every run has reached."""
    last = min(run.last for run in runs)
    return last if all(run.points[0].iteration <= last for run in runs) else None


def as_json(runs: Sequence[Run], over: int) -> dict[str, object]:
    """The runs as a JSON document; numbers that are not finite are null."""
    at = common(runs)
    return {
        "format": FORMAT,
        "smoothed_over": over,
        "compared_at": at,
        "runs": [
            {
                "name": run.name,
                "iterations": run.last,
                "loss": _finite(run.loss(over)),
                "loss_where_compared": _finite(run.loss(over, at)) if at else None,
                "seconds_per_step": run.seconds,
                "tokens_per_second": run.tokens,
                "tflops": run.tflops,
                "notes": list(run.notes),
                "points": [
                    [one.iteration, _finite(one.loss), one.seconds, one.tokens, one.tflops]
                    for one in run.points
                ],
            }
            for run in runs
        ],
    }


def _cells(run: Run, runs: Sequence[Run], over: int) -> list[str]:
    first = runs[0]
    found = [
        run.name,
        f"{run.last}",
        _number(run.loss(over), ".4f"),
        *(_number(_MEDIANS[name][0](run) or None, _MEDIANS[name][1]) for name in _measured(runs)),
    ]
    if len(runs) > 1:
        if run is first:
            return [*found, _NONE, _NONE]
        at = common(runs)
        found.append(_number(run.loss(over, at) - first.loss(over, at), "+.4f") if at else _NONE)
        times = (run.seconds, first.seconds)
        found.append(_number(times[0] / times[1], ".3f") if times[0] and times[1] else _NONE)
    return found


def _number(value: float | None, form: str) -> str:
    return _NONE if value is None or not math.isfinite(value) else format(value, form)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


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
