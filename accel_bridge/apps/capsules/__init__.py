"""Which module a capsule should hold, from where two recordings part. It imports no torch.

:mod:`accel_bridge.apps.capsules.replayed` runs operators again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from accel_bridge.apps.comparison import Comparison, place_of
from accel_bridge.errors import BridgeError
from accel_bridge.recording import KINDS, Recording

#: What a recording's names end with where they are an input of a module.
_INPUT = re.compile(r"\.(query|key|value)$")


@dataclass(frozen=True, slots=True)
class Place:
    """A module and a step."""

    module: str
    step: int


@dataclass(frozen=True, slots=True)
class FirstBit:
    """The first number that is not the same twice.

    :param place: where to look for the operator.
    :param what: in words.
    """

    place: Place
    step: int
    what: str


def choose(comparison: Comparison) -> Place:
    """Where to look for the operator.

    :raises BridgeError: the recordings agree.
    """
    first = comparison.first
    if first is not None:
        module = _module_of(first.kind, first.name, first.before)
        # All of the step before agreed, so the update between them made other weights.
        measured = {one.step for one in comparison.a.observations}
        if first.step - 1 in measured or (first.kind == KINDS[0] and first.step > 1):
            return Place("optimizer", first.step - 1)
        return Place(module, first.step)
    row = comparison.first_row
    if row is None:
        raise BridgeError(
            "The recordings agree: there is no step at which they part.",
            evidence=f"{comparison.checked} tensors and {len(comparison.rows)} steps",
            next="--module NAME with --step N makes a capsule all the same",
        )
    if row.loss <= comparison.limits.loss:
        # Every tensor agrees, the loss too: the norm of the gradients is the optimizer's.
        return Place("optimizer", row.a.number)
    return Place("loss", row.a.number)


def first_bit(a: Recording, b: Recording) -> FirstBit | None:
    """The first number that is not the same in two recordings of one command; None if all are."""
    other = {(one.step, one.kind, one.name): one for one in b.observations}
    before = ""
    for one in sorted(a.observations, key=place_of):
        two = other.get((one.step, one.kind, one.name))
        same = two is not None and repr(one.moments) == repr(two.moments)
        if not same or two is None or one.sample != two.sample:
            module = _module_of(one.kind, one.name, before)
            step = one.step - (one.kind == KINDS[0] and one.step > 1)
            return FirstBit(Place(module, step), one.step, f"the {one.kind} {one.name}")
        before = one.name if one.kind == "gradient" else ""
    for x, y in zip(a.steps, b.steps, strict=True):
        for what in ("loss", "gradient_norm"):
            if repr(getattr(x, what)) != repr(getattr(y, what)):
                part = "loss" if what == "loss" else "optimizer"
                text = f"the {what.replace('_', ' ')}"
                return FirstBit(Place(part, x.number), x.number, text)
    return None


def _module_of(kind: str, name: str, before: str) -> str:
    """The module around what departs: the operator may be between it and what ran before."""
    if kind == KINDS[0]:
        return "optimizer"
    if kind == "weight gradient":
        return f"{_around(name)}+gradients"
    if kind == "gradient":
        return _around(before) if before else "loss"
    return _around(_INPUT.sub("", name))


def _around(name: str) -> str:
    """The layer that a module or parameter is in; of one outside of layers, the module."""
    if name.endswith((".weight", ".bias")):
        name = name.rpartition(".")[0]
    layer = re.match(r"((?:.*\.)?layers\.\d+)\.", f"{name}.")
    return layer[1] if layer else name
