"""Runs in numbers: the table, what is to be known about it, and the JSON document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from accel_bridge.apps.plot._run import Run, tail

#: Raised when a field of the JSON document changes its meaning.
FORMAT: Final = 1
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NONE: Final = "-"


def letter(place: int) -> str:
    """How a run is called in short: A, B, ..., Z, A2."""
    return _LETTERS[place % 26] + ("" if place < 26 else str(place // 26 + 1))


def columns(runs: Sequence[Run]) -> list[str]:
    """Headings of :func:`rows`; differences only where there is something to compare."""
    found = ["", "name", "iterations", "loss", "s/step", "tokens/s", "TFLOP/s"]
    if len(runs) > 1:
        found += [f"loss - A at {common(runs)}" if common(runs) else "loss - A", "s/step : A"]
    return found


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
    lines = [f"loss: {mean}; s/step, tokens/s and TFLOP/s (a device): medians"]
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
        _number(run.seconds, ".4g"),
        _number(run.tokens, ",.0f"),
        _number(run.tflops, ".3g"),
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
