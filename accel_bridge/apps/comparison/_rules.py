"""Whether two recordings are of the same run, and the rules by which they agree, as numbers.

All differences are relative: of a loss or gradient norm to its own size, of a tensor to its root
mean square. docs/parity.md says how each limit was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from accel_bridge.errors import BridgeError
from accel_bridge.recording import Moments, Observation, Recording


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
