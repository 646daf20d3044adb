"""A training run as a picture needs it: its points, and what can be said of them in numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

#: Smoothing averages over so large a part of the longest run, and at most so many points.
_PART, _MOST = 40, 100
#: Numbers beyond this are no losses any more: an axis that reaches them shows nothing else.
CEILING = 1e30


@dataclass(frozen=True, slots=True)
class Point:
    """One logged iteration.

    :param loss: NaN where the log has none.
    :param seconds: time of the iteration; None if it is not known.
    :param tokens: tokens a second, of all devices together.
    :param tflops: floating-point operations a second and device (10**12).
    """

    iteration: int
    loss: float
    seconds: float | None = None
    tokens: float | None = None
    tflops: float | None = None


@dataclass(frozen=True)
class Run:
    """A run: its name, its points by iteration, and what a reader should know about them."""

    name: str
    points: tuple[Point, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def last(self) -> int:
        """The last logged iteration."""
        return self.points[-1].iteration

    @property
    def seconds(self) -> float | None:
        """Median time of an iteration; the first one of several, which warms up, is left out."""
        return _median([point.seconds for point in self.points[1:] or self.points])

    @property
    def tokens(self) -> float | None:
        """Median of the tokens a second, as :attr:`seconds`."""
        return _median([point.tokens for point in self.points[1:] or self.points])

    @property
    def tflops(self) -> float | None:
        """Median of the operations a second and device, as :attr:`seconds`."""
        return _median([point.tflops for point in self.points[1:] or self.points])

    def loss(self, over: int, at: int | None = None) -> float:
        """Where the curve, averaged over ``over`` points, ends at the iteration ``at``, or at last.

        NaN where there is no finite loss.
        """
        values = [point.loss for point in self.points if at is None or point.iteration <= at]
        return smoothed(values, over)[-1] if values else math.nan


def by_iteration(name: str, points: Sequence[Point], notes: Sequence[str] = ()) -> Run:
    """A run from points in the order in which they were logged.

    Of an iteration that was trained again, after a resume, the later point counts.
    """
    found: dict[int, Point] = {}
    again = 0
    for point in points:
        again += point.iteration in found
        found[point.iteration] = point
    said = list(notes)
    if again:
        said.append(f"{again} iterations were trained again after a resume: the later ones count")
    ordered = tuple(sorted(found.values(), key=_place))
    broken = [point.iteration for point in ordered if not is_drawable(point.loss)]
    if broken:
        said.append(f"{len(broken)} iterations have no finite loss; the first is {broken[0]}")
    return Run(name, ordered, tuple(said))


def window(runs: Sequence[Run]) -> int:
    """Over how many points is averaged if nobody says it: the same for all runs."""
    return min(_MOST, max(1, max(len(run.points) for run in runs) // _PART))


def smoothed(values: Sequence[float], over: int) -> list[float]:
    """Mean of each value and its neighbours on both sides, ``over`` together.

    What is not finite is left out. At the ends there are fewer neighbours; the last mean is that of
    :func:`tail` values.
    """
    sums, counts = [0.0], [0]
    for value in values:
        good = is_drawable(value)
        sums.append(sums[-1] + (value if good else 0.0))
        counts.append(counts[-1] + good)
    result = []
    for place in range(len(values)):
        low, high = max(0, place - over // 2), min(len(values), place + tail(over))
        count = counts[high] - counts[low]
        result.append((sums[high] - sums[low]) / count if count else math.nan)
    return result


def tail(over: int) -> int:
    """How many values the last mean of a curve is of."""
    return over // 2 + 1


def is_drawable(value: float) -> bool:
    """Whether a value is a number that an axis can reach."""
    return abs(value) < CEILING


def _place(point: Point) -> int:
    return point.iteration


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
