"""The rules by which two recordings agree, as numbers.

All differences are relative: of a loss or gradient norm to its own size, of a tensor to its root
mean square. docs/parity.md says how each limit was measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

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


#: How many times what one perturbation by rounding has moved a tensor two runs may differ by.
FACTOR: Final = 6.0
#: Least measured limit: the statistics themselves are rounded.
LEAST: Final = {"float32": 1e-6, "bfloat16": 2e-3, "float16": 3e-4}


@dataclass(frozen=True, slots=True)
class Distance:
    """How far apart two observations of one tensor are.

    :param moments: largest difference of mean, root mean square and largest magnitude.
    :param values: root mean square of the difference of the sampled values; None without samples.
    :param slope: part of that difference that is a multiple of the tensor (0.001: 0.1% too large).
    :param first: as ``moments``, of the first call in the step only; None when the two runs begin
        with other micro batches.
    """

    moments: float
    values: float | None
    slope: float
    first: float | None = None

    @property
    def size(self) -> float:
        """The larger of the two."""
        return max(self.moments, self.values or 0.0)

    def is_later(self, limit: float) -> bool:
        """The first micro batch agrees: what differs is a consequence of something else in it."""
        return self.first is not None and max(self.first, self.values or 0.0) <= limit

    @property
    def systematic(self) -> bool:
        """The difference is mostly a wrong factor."""
        return bool(self.values) and abs(self.slope) > SYSTEMATIC * (self.values or 0.0)


def measured_limit(a: Recording, b: Recording, one: Observation) -> float:
    """What rounding explains of a tensor at the first step; 0.0 where neither run measured it."""
    measured = [
        run.limits[key] for run in (a, b) if (key := f"{one.kind} {one.name}") in run.limits
    ]
    return max(FACTOR * max(measured), LEAST[a.precision]) if measured else 0.0


def distance(
    one: Observation, two: Observation, *, samples: bool, batches: bool = False
) -> Distance:
    """The distance of two observations of one tensor, relative to the first one's size.

    :param samples: the layouts are such that sampled values may be compared.
    :param batches: both runs begin with the same micro batches.
    """
    scale = max(one.moments.rms, two.moments.rms)
    if one.moments.rms == two.moments.rms == 0.0:
        return Distance(0.0, None, 0.0)
    moments = _of_moments(one.moments, two.moments, scale)
    first = None
    if batches and one.first is not None and two.first is not None:
        first = _of_moments(one.first, two.first, scale)
    if not (samples and one.shape == two.shape and one.sample and two.sample):
        return Distance(moments, None, 0.0, first)
    if len(one.sample) != len(two.sample):  # recorded with other numbers of values
        return Distance(moments, None, 0.0, first)
    differences = [y - x for x, y in zip(one.sample, two.sample, strict=True)]
    root = math.sqrt(sum(value * value for value in differences) / len(differences))
    squares = sum(x * x for x in one.sample)
    product = sum(x * d for x, d in zip(one.sample, differences, strict=True))
    slope = product / squares if squares else 0.0
    return Distance(moments, math.inf if math.isnan(root) else root / scale, slope, first)


def _of_moments(a: Moments, b: Moments, scale: float) -> float:
    return max(
        _relative(a.rms, b.rms, scale),
        _relative(a.mean, b.mean, scale),
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
