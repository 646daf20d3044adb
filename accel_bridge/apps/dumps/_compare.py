"""Which call departs first, whose fault it is, and what only one of the runs called."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from accel_bridge.apps.comparison._rules import LIMITS
from accel_bridge.apps.dumps._read import Dump, DumpError, Statistics, is_forward, is_module
from accel_bridge.recording import Recording

#: Of tensors that are neither float16 nor bfloat16.
_EXACT: Final = LIMITS["float32"].tensor
#: Departures that are listed.
SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Departure:
    """A call whose results differ.

    :param module: the module's call within which it ran; None at the top.
    :param distance: largest relative difference of its results.
    :param taken: the same of its arguments.
    :param only: operators that only one run has, since the last that both have: where its
        arguments differ, the culprit is among them.
    """

    name: str
    module: str | None
    distance: float
    limit: float
    taken: float
    stack: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    @property
    def is_module(self) -> bool:
        """Whether it is a module's call."""
        return is_module(self.name)

    @property
    def own(self) -> bool:
        """Its arguments agree, so the difference is made here."""
        return self.taken <= self.limit


@dataclass(frozen=True, slots=True)
class Found:
    """What two dumps, or a recording and a dump, have in common.

    :param checked: calls that both have.
    :param only: number of calls that only one has.
    :param departures: calls beyond the rule, in the order of the first dump.
    """

    a: str
    b: str
    checked: int
    only: tuple[int, int]
    departures: tuple[Departure, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing departs."""
        return not self.departures

    @property
    def first(self) -> Departure | None:
        """The first operator that departs, of the forward pass if one does; else the first call."""
        operators = [one for one in self.departures if not one.is_module]
        forward = [one for one in operators if is_forward(one.name)]
        return next(iter(forward or operators or self.departures), None)


def compare(a: Dump, b: Dump) -> Found:
    """Two dumps of the same step, call by call.

    :raises DumpError: they have no call in common, or are of different steps.
    """
    if a.step is not None and b.step is not None and a.step != b.step:
        raise DumpError(
            "the dumps are of different steps",
            evidence=f"{a.path}: step {a.step}; {b.path}: step {b.step}",
            next="give the same stepN of both",
        )
    others = {call.name: call for call in b.calls}
    names = {call.name for call in a.calls}
    departures: list[Departure] = []
    alone = (_alone(a, others), _alone(b, names))
    checked = 0
    for call in a.calls:
        other = others.get(call.name)
        if other is None:
            continue
        checked += 1
        limit = max((_limit(one) for one in call.outputs if one), default=_EXACT)
        apart = _apart(call.outputs, other.outputs)
        if apart > limit:
            taken = _apart(call.inputs, other.inputs)
            departures.append(
                Departure(
                    call.name,
                    a.parents.get(call.name),
                    apart,
                    limit,
                    taken,
                    a.stacks.get(call.name, ())[:6],
                    tuple(
                        f"{name} ({run})"
                        for run, before in zip("AB", alone, strict=True)
                        for name in before.get(call.name, ())[-SHOWN:]
                    ),
                )
            )
    if not checked:
        raise DumpError(
            "the dumps have no call in common",
            evidence=[f"{dump.path}: {[call.name for call in dump.calls[:3]]}" for dump in (a, b)],
            next="dump both runs with one level, of one model",
        )
    only = (len(names) - checked, len(others) - checked)
    return Found(str(a.path), str(b.path), checked, only, tuple(departures))


def compare_recording(recording: Recording, name: str, dump: Dump, step: int | None) -> Found:
    """The modules' results in a recording and in a dump of the same step.

    :param step: of the recording, from 1; None: that of the dump's folder.
    :raises DumpError: the recording has no measurements of that step, or no module in common.
    """
    number = step or (None if dump.step is None else dump.step + 1)
    measured = sorted({one.step for one in recording.observations})
    if number not in measured:
        raise DumpError(
            f"the recording has no measurements of step {number}",
            evidence=f"{name} measured modules at steps {measured}; msprobe's stepN is step N + 1",
            next=f"dump step {measured[0] - 1 if measured else 0}, or give --step",
        )
    limit = LIMITS[recording.precision].tensor
    seen = {
        one.name: one
        for one in recording.observations
        if one.step == number and one.kind == "output"
    }
    departures, matched = [], set()
    for call in dump.calls:
        # Module.0.module.decoder.final_layernorm.TENorm.forward.0
        if not (call.is_module and call.is_forward):
            continue
        parts = call.name.split(".")
        if parts[-1] != "0":
            continue  # a later micro batch
        module = _recorded(parts[1:-3], seen)
        output = next((one for one in call.outputs if one is not None), None)
        if module is None or module in matched or output is None:
            continue
        one = seen[module]
        moments = one.first or one.moments
        if moments.count != math.prod(output.shape):
            continue  # a part of it, or more than the first micro batch
        matched.add(module)
        apart = _distance(
            (moments.rms, moments.mean, moments.largest),
            (output.rms, output.mean, output.magnitude),
        )
        if apart > limit:
            stack = dump.stacks.get(call.name, ())[:6]
            departures.append(
                Departure(call.name, dump.parents.get(call.name), apart, limit, 0.0, stack)
            )
    if not matched:
        raise DumpError(
            "the recording and the dump have no module in common",
            evidence=[f"{name}: {list(seen)[:3]}", f"{dump.path}: {_modules(dump)[:3]}"],
            next='dump level "L0" or "mix" with debugger.start(model=...), of the same micro batch',
        )
    only = (len(seen) - len(matched), len(_modules(dump)) - len(matched))
    return Found(name, str(dump.path), len(matched), only, tuple(departures))


def _alone(dump: Dump, others: Container[str]) -> dict[str, list[str]]:
    """Operator that both runs have -> those of this run alone since the one before it."""
    found: dict[str, list[str]] = {}
    waiting: list[str] = []
    for call in dump.calls:
        if call.is_module:
            continue
        if call.name in others:
            found[call.name], waiting = waiting, []
        else:
            waiting.append(call.name)
    return found


def _modules(dump: Dump) -> list[str]:
    return [call.name for call in dump.calls if call.is_module and call.is_forward]


def _recorded(parts: Sequence[str], seen: Container[str]) -> str | None:
    """The recording's name of a module, which has no wrappers in front."""
    for start in range(len(parts)):
        if (name := ".".join(parts[start:])) in seen:
            return name
    return None


def _limit(one: Statistics) -> float:
    limits = LIMITS.get(one.dtype)
    return limits.tensor if limits else _EXACT


def _apart(one: Sequence[Statistics | None], two: Sequence[Statistics | None]) -> float:
    """The largest relative difference of tensors in the same places."""
    return max((distance for distance in _distances(one, two)), default=0.0)


def _distances(
    one: Sequence[Statistics | None], two: Sequence[Statistics | None]
) -> Iterator[float]:
    for a, b in zip(one, two, strict=False):
        if a is None or b is None:
            continue
        if math.prod(a.shape) != math.prod(b.shape):
            yield math.inf
            continue
        yield _distance((a.rms, a.mean, a.magnitude), (b.rms, b.mean, b.magnitude))


def _distance(a: tuple[float, float, float], b: tuple[float, float, float]) -> float:
    """The largest relative difference of two (root mean square, mean, largest magnitude)."""
    scale = max(a[0], b[0])
    scales = (scale, scale, max(a[2], b[2]))
    return max(map(_relative, a, b, scales))


def _relative(a: float, b: float, scale: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    difference = abs(a - b) / scale if scale else math.inf
    return math.inf if math.isnan(difference) else difference
