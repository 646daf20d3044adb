"""The comparison of two recordings: every step's loss, then the first tensor that departs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from accel_bridge.apps.comparison._rules import (
    ISOLATED,
    LATER,
    LIMITS,
    LOW_PRECISION,
    RATIO,
    Allowed,
    Distance,
    Limits,
    allowed,
    check_same_run,
    check_third,
    distance,
    moved,
    relative,
)
from accel_bridge.recording import KINDS, Observation, Recording, Step

#: Dimensions of the layout that decide which part of a tensor a rank holds.
SPLITTING: Final = ("TP", "SP", "CP", "EP")


class Kind(Enum):
    """What a comparison found."""

    AGREE = "agree"
    ROUNDING = "rounding"
    ACCUMULATION = "accumulation"
    DEFECT = "defect"
    NOT_FINITE = "not finite"


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step of both runs.

    :param loss: relative difference of the losses.
    :param gradient_norm: relative difference of the gradient norms.
    :param departs: one of them is beyond the rule.
    :param broken: a loss or a gradient norm is no finite number.
    """

    a: Step
    b: Step
    loss: float
    gradient_norm: float
    departs: bool
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Departure:
    """A tensor whose difference is beyond the rule.

    :param culprit: ``A`` or ``B``, when a third run tells; else empty.
    :param size: that difference: of values, statistics or the largest value.
    :param limit: what it may be at most.
    :param before: for a gradient: the module whose backward pass came between the last gradient
        that agreed and this one; empty otherwise.
    :param isolated: the same tensor of earlier layers agrees far better: a lower precision would
        have changed it too.
    """

    step: int
    kind: str
    name: str
    a: Observation
    b: Observation
    distance: Distance
    size: float
    limit: float
    culprit: str = ""
    before: str = ""
    isolated: bool = False

    @property
    def where(self) -> str:
        """The module or parameter to look at, in words."""
        if self.kind == "output":
            return f"the output of {self.name}"
        if self.kind == "gradient":
            backward = f"the backward pass of {self.before}" if self.before else "the loss"
            return f"{backward} (gradient that arrives at {self.name})"
        if self.kind == "weight gradient":
            return f"the gradient of the weight {self.name}"
        return f"the weight {self.name}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two recordings side by side.

    :param rows: every step.
    :param departures: of the first step that has any, in the order of computation.
    :param checked: tensors that were compared.
    :param only: names of tensors that only A, only B has.
    """

    a: Recording
    b: Recording
    third: Recording | None
    names: tuple[str, str]
    limits: Limits
    rows: tuple[StepRow, ...]
    departures: tuple[Departure, ...]
    checked: int
    only: tuple[tuple[str, ...], tuple[str, ...]]
    kind: Kind

    @property
    def passed(self) -> bool:
        """The runs agree, or differ by nothing but rounding."""
        return self.kind in (Kind.AGREE, Kind.ROUNDING)

    @property
    def first(self) -> Departure | None:
        """The first tensor that departs."""
        return self.departures[0] if self.departures else None

    @property
    def first_row(self) -> StepRow | None:
        """The first step whose loss or gradient norm departs."""
        return next((row for row in self.rows if row.departs), None)


def compare(
    a: Recording,
    b: Recording,
    third: Recording | None = None,
    names: tuple[str, str, str] = ("A", "B", "the third"),
) -> Comparison:
    """Compare two recordings of the same run.

    :param third: the same run in float32, to tell rounding from defects.
    :raises NotComparable: they are of different runs.
    """
    check_same_run(a, b, names[:2])
    if third is not None:
        check_third(a, third, (names[0], names[2]))
    limits = LIMITS[a.precision]
    rows = tuple(_rows(a, b, third, limits))
    # Without a departing loss only the first step is judged: later tensors may differ by what
    # the optimizer makes of rounding.
    late = any(row.departs for row in rows)
    departures = tuple(sorted(_departures(a, b, third, limits, late), key=_cause_first))
    pairs = _pairs(a, b)
    kind = _kind(rows, departures, limits)
    return Comparison(
        a,
        b,
        third,
        names[:2],
        limits,
        rows,
        departures,
        len(pairs),
        (_missing(a, b), _missing(b, a)),
        kind,
    )


def depths(
    comparison: Comparison,
) -> tuple[list[tuple[str, str]], list[int], dict[tuple[int, int], float]]:
    """Every tensor of every measured step, in the order of computation.

    :returns: (kind, name) of the rows, the steps of the columns, and (row, column) -> the
        difference as a multiple of its limit.
    """
    a, b = comparison.a, comparison.b
    pairs = _pairs(a, b)
    names = list(dict.fromkeys((one.kind, one.name) for one, _ in pairs))
    names.sort(key=lambda row: KINDS.index(row[0]))
    steps = sorted({one.step for one, _ in pairs})
    rows = {row: place for place, row in enumerate(names)}
    samples, batches = _same_parts(a, b), _same_batches(a, b)
    found = {}
    for one, two in pairs:
        limits: Allowed = (comparison.limits.tensor * LATER,) * 3
        if one.step == steps[0]:
            limits = allowed(a.precision, moved(a, b, one))
        size, limit = distance(one, two, samples=samples, batches=batches).worst(limits)
        found[rows[one.kind, one.name], steps.index(one.step)] = size / limit
    return names, steps, found


def moved_by(run: Recording, others: Sequence[Recording]) -> dict[str, Allowed]:
    """By how much each tensor of the first step differs: "kind name" -> most of all ``others``.

    What is one number of a tensor moves little by chance: it is the most of the same tensor in
    all layers.
    """
    values: dict[str, float] = {}
    ones: dict[str, tuple[float, float]] = {}
    for one, two in (pair for other in others for pair in _pairs(run, other)):
        name, found = f"{one.kind} {one.name}", distance(one, two, samples=True)
        if one.step == run.steps[0].number and math.isfinite(found.size):
            # Without values that can be compared, where experts got other tokens: all of them.
            most = 1.0 if found.values is None else found.values
            values[name] = max(most, values.get(name, 0.0))
            means, largest = ones.get(_in_any_layer(name), (0.0, 0.0))
            ones[_in_any_layer(name)] = max(found.means, means), max(found.largest, largest)
    return {name: (size, *ones[_in_any_layer(name)]) for name, size in values.items()}


def _in_any_layer(name: str) -> str:
    return re.sub(r"\.\d+\.", ".*.", f"{name}.")


def _rows(a: Recording, b: Recording, third: Recording | None, limits: Limits) -> Iterator[StepRow]:
    acquitted = _acquits(a, b, third)
    for one, two in zip(a.steps, b.steps, strict=True):
        loss = relative(one.loss, two.loss)
        norm = relative(one.gradient_norm, two.gradient_norm)
        within = loss <= limits.loss and norm <= limits.gradient_norm
        broken = not _is_finite(one, two, a.precision)
        yield StepRow(one, two, loss, norm, broken or (not within and not acquitted), broken)


def _is_finite(a: Step, b: Step, precision: str) -> bool:
    """Losses and gradient norms are numbers that can be compared.

    Loss scaling in float16 skips steps, which then have no gradient norm; both runs skip the same.
    """
    if not (math.isfinite(a.loss) and math.isfinite(b.loss)):
        return False
    norms = math.isfinite(a.gradient_norm), math.isfinite(b.gradient_norm)
    return all(norms) or (precision == "float16" and not any(norms))


def _acquits(a: Recording, b: Recording, third: Recording | None) -> bool:
    """Both runs are about as far from float32, so that is what the precision costs."""
    if third is None or third.precision == a.precision:
        return False
    exact = LIMITS[third.precision]
    for values, floor in ((_losses, exact.loss), (_norms, exact.gradient_norm)):
        reference = values(third)
        far_a = max(map(relative, values(a), reference))
        far_b = max(map(relative, values(b), reference))
        if not math.isfinite(max(far_a, far_b)):
            return False
        if not max(far_a, far_b) <= RATIO * min(far_a, far_b) + floor:
            return False
    return True


def _losses(recording: Recording) -> list[float]:
    return [step.loss for step in recording.steps]


def _norms(recording: Recording) -> list[float]:
    return [step.gradient_norm for step in recording.steps]


def _departures(
    a: Recording, b: Recording, third: Recording | None, limits: Limits, late: bool
) -> Iterator[Departure]:
    """Departing tensors of the first step that has any, in the order of computation."""
    samples, batches = _same_parts(a, b), _same_batches(a, b)
    exact = {} if third is None else {_key(item): item for item in third.observations}
    exact_samples = third is not None and samples and _same_parts(a, third)
    pairs = _pairs(a, b)
    first_step = min((one.step for one, _ in pairs), default=0)
    found_step, agreed = None, ""
    earlier: dict[tuple[int, str, str], float] = {}
    # One token that goes to another expert changes much at once.
    spread = math.inf if a.identity.get("model", {}).get("num_experts") else 0.0
    for one, two in pairs:
        if found_step is not None and one.step != found_step:
            return
        if one.step != first_step and not late:
            return
        most: Allowed = (limits.tensor * LATER,) * 3
        perturbed = moved(a, b, one) if one.step == first_step else None
        if one.step == first_step:
            most = allowed(a.precision, perturbed, spread)
        measured = distance(one, two, samples=samples, batches=batches)
        size, limit = measured.worst(most)
        reference = exact.get(_key(one))
        culprit = ""
        departs = size > limit
        if reference is not None and one.step == first_step:
            judged = _by_third(one, two, reference, exact_samples)
            if judged is not None:
                departs, culprit, limit = judged
                size = measured.size
        in_any_layer = (one.step, one.kind, _in_any_layer(one.name))
        if departs:
            found_step = one.step
            yield Departure(
                one.step,
                one.kind,
                one.name,
                one,
                two,
                measured,
                size,
                limit,
                culprit,
                before=agreed if one.kind == "gradient" else "",
                isolated=earlier.get(in_any_layer, math.inf) < measured.size / ISOLATED,
            )
            continue
        if perturbed and perturbed[0]:
            spread = max(spread, (measured.values or 0.0) / perturbed[0])
        earlier[in_any_layer] = max(measured.size, earlier.get(in_any_layer, 0.0))
        if one.kind == "gradient":
            agreed = one.name


def _by_third(
    one: Observation, two: Observation, exact: Observation, samples: bool
) -> tuple[bool, str, float] | None:
    """(departs, culprit, limit) by the ratio rule; None when there are no values to compare.

    The third says nothing where both are infinitely far from it: some value is not a number.
    Statistics of few rounded elements agree by chance; differences of 256 values do not.
    """
    far_a = distance(exact, one, samples=samples).values
    far_b = distance(exact, two, samples=samples).values
    if far_a is None or far_b is None or math.isinf(min(far_a, far_b)):
        return None
    limit = RATIO * min(far_a, far_b) + LIMITS["float32"].tensor
    if max(far_a, far_b) <= limit:
        return False, "", limit
    return True, "A" if far_a > far_b else "B", limit


def _kind(rows: tuple[StepRow, ...], departures: tuple[Departure, ...], limits: Limits) -> Kind:
    skipped = not any(math.isfinite(row.a.gradient_norm) for row in rows)
    if skipped or any(row.broken for row in rows):
        return Kind.NOT_FINITE
    if not departures:
        if any(row.departs for row in rows):
            # Every tensor that was recorded agrees, and yet the runs drift apart.
            return Kind.ACCUMULATION
        within = all(
            row.loss <= limits.loss and row.gradient_norm <= limits.gradient_norm for row in rows
        )
        return Kind.AGREE if within else Kind.ROUNDING
    first = departures[0]
    if first.distance.size > LOW_PRECISION or first.distance.systematic or first.isolated:
        return Kind.DEFECT
    return Kind.ACCUMULATION


def _same_parts(a: Recording, b: Recording) -> bool:
    """The first rank holds the same part of every tensor in both."""
    return all(a.layout.get(name, 1) == b.layout.get(name, 1) for name in SPLITTING)


def _same_batches(a: Recording, b: Recording) -> bool:
    """Every rank begins a step with the same micro batch in both."""
    size = "micro_batch_size"
    return a.layout.get("DP", 1) == b.layout.get("DP", 1) and (
        a.arguments.get(size) == b.arguments.get(size)
    )


def _cause_first(departure: Departure) -> tuple[int, bool]:
    """Order of computation, except that what departs only in later micro batches comes last."""
    later = departure.distance.is_later(departure.limit)
    return KINDS.index(departure.kind), later


def _key(item: Observation) -> tuple[int, str, str]:
    return item.step, item.kind, item.name


def _pairs(a: Recording, b: Recording) -> list[tuple[Observation, Observation]]:
    """Observations that both have, in the order of A's computation."""
    other = {_key(item): item for item in b.observations}
    both = [(item, other[_key(item)]) for item in a.observations if _key(item) in other]
    return sorted(both, key=lambda pair: place_of(pair[0]))


def place_of(item: Observation) -> tuple[int, int, int, int]:
    """When an observation was made; gradients come from the last stage first."""
    stage = -item.stage if item.kind == "gradient" else item.stage
    return item.step, KINDS.index(item.kind), stage, item.order


def _missing(a: Recording, b: Recording) -> tuple[str, ...]:
    """Names that only A has."""
    names = {item.name for item in b.observations}
    return tuple(sorted({item.name for item in a.observations} - names))
