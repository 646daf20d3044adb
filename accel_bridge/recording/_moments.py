"""Statistics of a tensor that may be split over ranks, micro batches and calls."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums over the elements of a tensor; those of its parts add up to those of the whole.

    Everything derived is *per element*, so a tensor that several ranks hold whole gives the same
    values as one that they hold in parts.

    :param count: elements.
    :param total: their sum.
    :param squares: sum of their squares.
    :param largest: largest absolute value.
    """

    count: int
    total: float
    squares: float
    largest: float

    @classmethod
    def merged(cls, parts: Iterable[Moments]) -> Moments:
        """The moments of all parts together; a NaN in a part stays one."""
        parts = list(parts)
        largest = [part.largest for part in parts]
        return cls(
            sum(part.count for part in parts),
            math.fsum(part.total for part in parts) if _finite(parts) else math.nan,
            math.fsum(part.squares for part in parts) if _finite(parts) else math.nan,
            math.nan if any(map(math.isnan, largest)) else max(largest),
        )

    def scaled(self, factor: float) -> Moments:
        """The moments of the tensor times ``factor``."""
        return Moments(
            self.count, self.total * factor, self.squares * factor**2, self.largest * abs(factor)
        )

    @property
    def mean(self) -> float:
        """Mean."""
        return self.total / self.count

    @property
    def rms(self) -> float:
        """Root of the mean square: the L2 norm over the square root of the number of elements."""
        return math.sqrt(self.squares / self.count)

    @property
    def std(self) -> float:
        """Standard deviation (of the population)."""
        return math.sqrt(max(self.squares / self.count - self.mean * self.mean, 0.0))


def _finite(parts: Iterable[Moments]) -> bool:
    return all(math.isfinite(part.total) and math.isfinite(part.squares) for part in parts)
