"""A picture of letters: the losses on a terminal, without any library."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bridge.apps.plot._run import Run, is_drawable, smoothed
from accel_bridge.apps.plot._table import letter


def text_plot(runs: Sequence[Run], over: int, width: int, height: int = 12) -> list[str]:
    """The smoothed losses as lines of text, each run by its letter.

    :param width: columns that the picture may take.
    """
    curves = [
        [
            (point.iteration, value)
            for point, value in zip(
                run.points, smoothed([point.loss for point in run.points], over), strict=True
            )
            if is_drawable(value)
        ]
        for run in runs
    ]
    drawn = [pair for curve in curves for pair in curve]
    if not drawn:
        return ["no loss is a finite number: there is nothing to draw"]
    low, high = min(value for _, value in drawn), max(value for _, value in drawn)
    first, last = min(place for place, _ in drawn), max(place for place, _ in drawn)
    labels = [f"{value:.4g}" for value in (high, (high + low) / 2, low)]
    margin = max(map(len, labels))
    across = max(10, width - margin - 3)
    grid = [[" "] * across for _ in range(height)]
    for place, curve in enumerate(curves):
        for iteration, value in curve:
            column = round((iteration - first) / max(1, last - first) * (across - 1))
            row = round((high - value) / ((high - low) or 1.0) * (height - 1))
            grid[row][column] = letter(place)[0]
    at = (
        {0: labels[0], height // 2: labels[1], height - 1: labels[2]}
        if high > low
        else {0: labels[0]}
    )
    lines = [f"{at.get(row, ''):>{margin}} |{''.join(grid[row])}".rstrip() for row in range(height)]
    axis = f"{first}{'iteration':^{max(11, across - len(str(first)) - len(str(last)))}}{last}"
    return [*lines, f"{'':{margin}} +{'-' * across}", f"{'':{margin}}  {axis}"[:width]]
