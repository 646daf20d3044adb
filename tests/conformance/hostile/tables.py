"""All kinds of bad input, and how many of each a sample holds."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from conformance.hostile import environment, faults, training
from conformance.hostile.case import Case, Maker
from conformance.hostile.commands import slot_cases

#: kind -> (share of a sample, what makes its cases).
KINDS: Final[Mapping[str, tuple[int, Maker]]] = {
    "outputs": (18, partial(slot_cases, "outputs")),
    "inputs": (16, partial(slot_cases, "inputs")),
    "numbers": (16, partial(slot_cases, "numbers")),
    "words": (3, partial(slot_cases, "words")),
    "variables": (9, environment.variables),
    "streams": (7, environment.streams),
    "faults": (16, faults.faults),
    "signals": (15, faults.signals),
    "together": (6, faults.together),
    "arguments": (12, training.arguments),
    "training": (5, training.paths),
    "checkpoints": (5, training.checkpoints),
}


def draw(count: int, source: random.Random, kinds: Sequence[str]) -> list[Case]:
    """``count`` cases, shared among the kinds; all of them for 0."""
    total = sum(KINDS[kind][0] for kind in kinds)
    drawn: list[Case] = []
    for kind in kinds:
        share, make = KINDS[kind]
        cases = list(make(source))
        source.shuffle(cases)
        drawn += cases if count == 0 else cases[: max(1, round(count * share / total))]
    return drawn if count == 0 else drawn[:count]
