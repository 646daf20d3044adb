"""A sample of the parity table in which every layout, mask, shape and dtype is at least once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel_bridge.kernels.cases import Case


def sample(cases: Iterable[Case], step: int) -> list[Case]:
    """Every ``step``-th case, and each one whose name has a word that is new for its contract."""
    kept, seen = [], set[str]()
    for place, case in enumerate(cases):
        words = {f"{case.contract} {word}" for word in (*case.name.split(), case.dtype)}
        if place % step == 0 or not words <= seen:
            kept.append(case)
            seen |= words
    return kept
