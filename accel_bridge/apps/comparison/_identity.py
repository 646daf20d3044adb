"""Whether two recordings are of the same run, up to machine, layout and implementation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from accel_bridge.apps.comparison._rules import LIMITS
from accel_bridge.errors import BridgeError
from accel_bridge.recording import Recording

#: Differences shown before the rest is counted.
SHOWN: Final = 20


class NotComparable(BridgeError):
    """Two recordings are of different runs."""


def check_same_run(a: Recording, b: Recording, names: tuple[str, str]) -> None:
    """Both must be the same model, data, schedule and framework version in one precision.

    :param names: what the user calls them.
    :raises NotComparable: listing every difference.
    """
    differences = list(_differences(a, b))
    if a.precision not in LIMITS:
        differences.insert(0, f"precision: no rule for {a.precision!r}")
    if a.precision != b.precision:
        differences.insert(0, f"precision: {a.precision} | {b.precision}")
    _refuse(differences, names)


def check_third(a: Recording, third: Recording, names: tuple[str, str]) -> None:
    """The third run must be the same run in float32.

    :raises NotComparable: listing every difference.
    """
    differences = list(_differences(a, third))
    if third.precision != "float32":
        differences.insert(0, f"precision of the third run: {third.precision}, not float32")
    for step in third.steps:
        if not (math.isfinite(step.loss) and math.isfinite(step.gradient_norm)):
            text = f"loss {step.loss}, gradient norm {step.gradient_norm}"
            differences.append(f"third run: step {step.number}: {text}; it must be finite")
            break
    _refuse(differences, names)


def _differences(a: Recording, b: Recording) -> Iterator[str]:
    """One line for each difference that makes a comparison meaningless."""
    for section in sorted({*a.identity, *b.identity}):
        left: Mapping[str, Any] = a.identity.get(section, {})
        right: Mapping[str, Any] = b.identity.get(section, {})
        for name in sorted({*left, *right}):
            one, two = left.get(name, "(absent)"), right.get(name, "(absent)")
            if one != two:
                yield f"{section}: {name}: {one} | {two}"
    numbers = [[step.number for step in recording.steps] for recording in (a, b)]
    if numbers[0] != numbers[1]:
        yield f"steps: {_range(numbers[0])} | {_range(numbers[1])}"
        return
    for one, two in zip(a.steps, b.steps, strict=True):
        if one.data != two.data:
            yield f"data: the batch of step {one.number} and maybe later ones hold other tokens"
            return


def _range(numbers: list[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if numbers else "none"


def _refuse(differences: list[str], names: tuple[str, str]) -> None:
    if not differences:
        return
    shown = differences[:SHOWN]
    if len(differences) > SHOWN:
        shown.append(f"and {len(differences) - SHOWN} more")
    next_step = "record both with the same arguments (layout and machine may differ)"
    if any("padded_vocab_size" in line for line in differences):
        next_step += "; --make-vocab-size-divisible-by N, a multiple of all layouts' N, pads alike"
    raise NotComparable(
        f"{names[0]} and {names[1]} are not recordings of the same run.",
        evidence=shown,
        next=next_step,
    )
