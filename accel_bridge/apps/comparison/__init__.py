"""The comparison of two recordings: every step's loss, then the first tensor that departs.

Whether they are of the same run comes first. All differences are relative: of a loss or gradient
norm to its own size, of a tensor to its root mean square. docs/parity.md says how each limit was
measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from accel_bridge.errors import BridgeError
from accel_bridge.recording import KINDS, Moments, Observation, Recording, Step


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest relative differences of two runs in one precision.

    :param loss: of the loss, at every step.
    :param gradient_norm: of the gradient norm, at every step.
    :param tensor: of a tensor's statistics and values at the first step, where both runs still
        have the same weights.
    """

    loss: float
    gradient_norm: float
    tensor: float


LIMITS: Final = {
    "float32": Limits(loss=1e-5, gradient_norm=1e-4, tensor=5e-5),
    "bfloat16": Limits(loss=1e-3, gradient_norm=1e-1, tensor=5e-2),
    "float16": Limits(loss=2e-4, gradient_norm=2e-2, tensor=1e-2),
}
#: With a third run in float32: how many times as far from it one run may be as the other
#: (FlashAttention's rule).
RATIO: Final = 2.0
#: After an update, rounding has passed through the optimizer, which divides small gradients by
#: their own size: later tensors may differ this many times as much.
LATER: Final = 10.0
#: Largest difference that sums in bfloat16 explain: 2^-8 a term, a few of them.
LOW_PRECISION: Final = 0.02
#: Share of a difference that is a multiple of the tensor itself, from which on it is systematic:
#: rounding does not scale.
SYSTEMATIC: Final = 0.5

#: Values of a tensor from which on a factor is none by chance; its share of their squares; the
#: least of an optimizer's, which computes it in float32.
MANY: Final = 16
ALL_OF: Final = 0.9
LEAST_FACTOR: Final = 1e-6

#: How many times better the same tensor of earlier layers agrees, from which on a difference is
#: this layer's own.
ISOLATED: Final = 10.0


#: How many times what perturbations by rounding have moved a tensor two runs may differ by. They
#: move every value by up to a unit in its last place: in low precision that is all that happens
#: to it; in float32, sums of many terms lose more.
FACTOR: Final = {"float32": 6.0, "bfloat16": 2.0, "float16": 2.0}
#: The same for what is one number of the whole tensor, so that a perturbation shows it by chance.
FACTOR_OF_ONE: Final = 6.0
#: Two runs that have so far parted by a share of what perturbations moved may go on to so many
#: times that share.
SPREAD: Final = 6.0
#: Largest differences of a tensor's values, of its mean and root mean square, of its largest value.
Allowed = tuple[float, float, float]
#: Least measured limits: what one operator's own rounding explains.
LEAST: Final[Mapping[str, Allowed]] = {
    "float32": (1e-5, 1e-5, 1e-5),
    "bfloat16": (1.2e-2, 2e-3, 1.2e-2),
    "float16": (1.5e-3, 3e-4, 1.5e-3),
}


@dataclass(frozen=True, slots=True)
class Distance:
    """How far apart two observations of one tensor are.

    :param means: larger difference of mean and root mean square.
    :param largest: difference of the largest magnitudes.
    :param values: root mean square of the difference of the sampled values; None without samples.
    :param slope: part of that difference that is a multiple of the tensor (0.001: 0.1% too large).
    :param first: larger of ``means`` and ``largest``, of the first call in the step only; None when
        the two runs begin with other micro batches.
    """

    means: float
    largest: float
    values: float | None
    slope: float
    first: float | None = None

    @property
    def size(self) -> float:
        """The largest of all."""
        return max(*self.parts)

    @property
    def parts(self) -> Allowed:
        """What :data:`Allowed` limits."""
        return self.values or 0.0, self.means, self.largest

    def worst(self, allowed: Allowed) -> tuple[float, float]:
        """The difference that is the largest multiple of its limit, and the limit."""
        return max(
            zip(self.parts, allowed, strict=True),
            key=lambda pair: pair[0] / pair[1] if pair[1] else pair[0] and math.inf,
        )

    def is_later(self, limit: float) -> bool:
        """The first micro batch agrees: what differs is a consequence of something else in it."""
        return self.first is not None and max(self.first, self.values or 0.0) <= limit

    @property
    def systematic(self) -> bool:
        """The difference is mostly a wrong factor."""
        return bool(self.values) and abs(self.slope) > SYSTEMATIC * (self.values or 0.0)


def moved(a: Recording, b: Recording, one: Observation) -> Allowed | None:
    """By how much perturbations moved a tensor; None where neither run measured it."""
    key = f"{one.kind} {one.name}"
    measured = [run.limits[key] for run in (a, b) if key in run.limits]
    if not measured:
        return None
    values, means, largest = (max(both) for both in zip(*measured, strict=True))
    return values, means, largest


def allowed(precision: str, measured: Allowed | None, spread: float = math.inf) -> Allowed:
    """What rounding explains of a tensor at the first step: as measured, or by the table.

    :param spread: the largest share of what perturbations moved by which the two runs have parted
        before this tensor.
    """
    if measured is None:
        return (LIMITS[precision].tensor,) * 3
    values, means, largest = measured
    least = LEAST[precision]
    # In a run of low precision, some tensors are float32: they are hardly moved.
    own = max(min(least[0], SPREAD * values), LEAST["float32"][0])
    return (
        max(min(FACTOR[precision], SPREAD * spread) * values, own),
        max(FACTOR_OF_ONE * means, least[1]),
        max(FACTOR_OF_ONE * largest, least[2]),
    )


def distance(
    one: Observation, two: Observation, *, samples: bool, batches: bool = False
) -> Distance:
    """The distance of two observations of one tensor, relative to the first one's size.

    :param samples: the layouts are such that sampled values may be compared.
    :param batches: both runs begin with the same micro batches.
    """
    scale = max(one.moments.rms, two.moments.rms)
    if one.moments.rms == two.moments.rms == 0.0:
        return Distance(0.0, 0.0, None, 0.0)
    moments = _of_moments(one.moments, two.moments, scale)
    first = None
    if batches and one.first is not None and two.first is not None:
        first = max(_of_moments(one.first, two.first, scale))
    if not (samples and one.shape == two.shape and one.sample and two.sample):
        return Distance(*moments, None, 0.0, first)
    if len(one.sample) != len(two.sample):  # recorded with other numbers of values
        return Distance(*moments, None, 0.0, first)
    differences = [y - x for x, y in zip(one.sample, two.sample, strict=True)]
    root = math.sqrt(sum(value * value for value in differences) / len(differences))
    squares = sum(x * x for x in one.sample)
    product = sum(x * d for x, d in zip(one.sample, differences, strict=True))
    slope = product / squares if squares else 0.0
    return Distance(*moments, math.inf if math.isnan(root) else root / scale, slope, first)


def _of_moments(a: Moments, b: Moments, scale: float) -> tuple[float, float]:
    return (
        max(_relative(a.rms, b.rms, scale), _relative(a.mean, b.mean, scale)),
        _relative(a.largest, b.largest, max(a.largest, b.largest)),
    )


def relative(a: float, b: float) -> float:
    """|a - b| over the larger magnitude; two NaNs are equal, one is infinitely far."""
    return _relative(a, b, max(abs(a), abs(b)))


def _relative(a: float, b: float, scale: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    difference = abs(a - b) / scale if scale else math.inf
    return math.inf if math.isnan(difference) else difference


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
        that agreed and this one; for a weight: what of the optimizer explains most of them.
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
        if self.before:
            return f"the optimizer's {self.before} (most weights, first {self.name})"
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
    factor = _of_the_optimizer(pairs) if _same_parts(a, b) else None
    if factor is not None and factor.step <= min(
        (one.step for one in departures), default=math.inf
    ):
        departures = factor, *departures
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
    for name, floor in (("loss", exact.loss), ("gradient_norm", exact.gradient_norm)):
        of_a, of_b, reference = (
            [getattr(step, name) for step in run.steps] for run in (a, b, third)
        )
        far_a, far_b = (max(map(relative, values, reference)) for values in (of_a, of_b))
        if not math.isfinite(max(far_a, far_b)):
            return False
        if not max(far_a, far_b) <= RATIO * min(far_a, far_b) + floor:
            return False
    return True


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


def _of_the_optimizer(pairs: list[tuple[Observation, Observation]]) -> Departure | None:
    """What one factor changes in most weights in an update, however little: in their size, as
    another weight decay does, or in their step, as another learning rate does.
    """
    weights: dict[int, dict[str, tuple[Observation, Observation]]] = {}
    for one, two in pairs:
        if one.kind == "weight" and one.sample and two.sample and len(one.shape) > 1:
            weights.setdefault(one.step, {})[one.name] = one, two
    for step, after in weights.items():
        before = weights.get(step - 1, {})
        found: dict[str, list[Departure]] = {"weight decay": [], "learning rate": []}
        for name, (one, two) in after.items():
            for cause, slope in _factors(before.get(name), one, two):
                off = Distance(0.0, 0.0, abs(slope), slope)
                made = (step, one.kind, name, one, two, off, off.size, LEAST_FACTOR)
                found[cause].append(Departure(*made, before=cause))
        for same in found.values():
            if 2 * len(same) > len(after):
                return same[0]
    return None


def _factors(
    before: tuple[Observation, Observation] | None, one: Observation, two: Observation
) -> Iterator[tuple[str, float]]:
    """Which factor explains what an update has made of a weight in B and not in A."""
    values = [list(part.sample or ()) for part in (*(before or ()), one, two)]
    if before is None or len({len(part) for part in values}) > 1 or len(values[0]) < MANY:
        return
    was, other, now, made = values
    step = [x - w for w, x in zip(was, now, strict=True)]
    apart = [(y - v) - d for v, y, d in zip(other, made, step, strict=True)]
    squares = sum(d * d for d in apart)
    for cause, base in (("weight decay", now), ("learning rate", step)):
        product, size = (
            sum(v * d for v, d in zip(base, part, strict=True)) for part in (apart, base)
        )
        slope = product / size if size else 0.0
        if abs(slope) > LEAST_FACTOR and slope * product > ALL_OF * squares:
            yield cause, slope


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
    factors = (
        one.distance.systematic and len(one.a.sample or ()) >= MANY and one.size > LOW_PRECISION
        for one in departures
    )
    return Kind.DEFECT if any(factors) else Kind.ACCUMULATION


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
