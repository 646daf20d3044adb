"""When two results agree, and how a case becomes a call.

The tolerance policy:

1. Bitwise, where nothing numeric may change (layouts, communication, permutation).
2. The ratio rule for kernels (FlashAttention's): against a float64 reference, a kernel may be at
   most 2 times (gradients: 3 times) as far off as plain PyTorch is in the same precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import torch

from accel_bridge.kernels import (
    ADAMW,
    ATTENTION,
    ATTENTION_MAX_LOGIT,
    AdamWOptions,
    AttentionOptions,
)
from accel_bridge.kernels.cases import DTYPES, Case, Inputs, Rule, convert

#: Largest ratio of a forward result and of a gradient.
FORWARD_LIMIT: Final = 2.0
BACKWARD_LIMIT: Final = 3.0
#: Share of the largest value that is forgiven in any precision: 8 units in float32's last place,
#: the cost of another order of summation or a vectorised exponential.
FLOOR: Final = 2.0**-20
#: A baseline further off than this share of the largest value says nothing about a kernel.
MEANINGFUL: Final = 0.25


def table(
    contract: str,
    build: Callable[..., Inputs],
    settings: Iterable[tuple[Any, ...]],
    *,
    dtypes: Iterable[torch.dtype] = DTYPES,
    **options: Any,
) -> Iterator[Case]:
    """A case in each precision for each setting: its name, then what ``build`` takes.

    :param options: of every :class:`Case`.
    """
    for name, *arguments in settings:
        bound = _Bound(build, tuple(arguments))
        yield from (Case(contract, name, dtype, bound, **options) for dtype in dtypes)


@dataclass(frozen=True, slots=True, eq=False)  # arguments may have no hash
class _Bound:
    """A function of inputs, called with the generator and then its own arguments."""

    build: Callable[..., Inputs]
    arguments: tuple[Any, ...]

    def __call__(self, generator: torch.Generator) -> Inputs:
        return self.build(generator, *self.arguments)


@dataclass(frozen=True, slots=True)
class Measurement:
    """How far a result is from what it should be.

    :param part: what was compared: ``output``, ``grad query``, ...
    :param rule: the one it was measured by.
    :param ratio: the measured ratio: for RATIO the error over the baseline's error; for TOLERANCE
        the error over the tolerance; for BITWISE 0 or infinity.
    :param limit: the largest ratio that passes.
    :param error: largest absolute difference from the reference.
    :param baseline: the same for plain PyTorch in the same precision (RATIO only).
    :param note: what else is wrong (shape, dtype); such a measurement never passes.
    """

    part: str
    rule: Rule
    ratio: float
    limit: float
    error: float
    baseline: float = 0.0
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the rule is met; a NaN ratio never meets it."""
        return not self.note and self.ratio <= self.limit

    @property
    def severity(self) -> float:
        """Ratio over limit: above 1 is a failure; infinite for NaN."""
        share = self.ratio / self.limit if self.limit else self.ratio
        return math.inf if self.note or math.isnan(share) else share


def by_ratio(
    part: str,
    result: torch.Tensor,
    exact: torch.Tensor,
    plain: torch.Tensor,
    limit: float = FORWARD_LIMIT,
    scale: float = 0.0,
) -> Measurement:
    """``max|result - exact| <= limit * max|plain - exact| + atol``.

    The ratio that is reported is the error over ``max|plain - exact| + atol / limit``, which is
    at most ``limit`` exactly when the rule holds. ``atol`` is half a unit in the last place of
    the largest value (unavoidable rounding) plus ``FLOOR * scale``.

    :param result: the kernel's result in its own precision.
    :param exact: the reference in float64 on the same inputs.
    :param plain: plain PyTorch in the kernel's precision; defines dtype and shape.
    :param scale: largest value of all results (or gradients) of the call: a gradient that cancels
        to zero is as inexact as the terms in its sum.
    """
    note = _mismatch(result, plain)
    if note:
        return Measurement(part, Rule.RATIO, math.inf, limit, math.inf, note=note)
    finite = torch.finfo(plain.dtype)
    comparable = exact.abs() <= finite.max  # the format cannot represent larger values
    error, baseline = _distance(result, exact, comparable), _distance(plain, exact, comparable)
    largest = _largest(exact.masked_select(comparable & exact.isfinite()))
    scale = max(scale, largest)
    if not baseline <= MEANINGFUL * scale:
        note = "plain PyTorch is itself too far off here: the case cannot judge a kernel"
        return Measurement(part, Rule.RATIO, math.nan, limit, error, baseline, note)
    allowed = baseline + (finite.eps / 2 * largest + FLOOR * scale) / limit
    ratio = 0.0 if error == 0.0 else error / allowed if allowed else math.inf
    return Measurement(part, Rule.RATIO, ratio, limit, error, baseline)


def bitwise(part: str, result: torch.Tensor, expected: torch.Tensor) -> Measurement:
    """Every bit equal (NaN equals NaN of the same bits; -0.0 differs from 0.0)."""
    note = _mismatch(result, expected)
    if note:
        return Measurement(part, Rule.BITWISE, math.inf, 0.0, math.inf, note=note)
    if torch.equal(_bits(result), _bits(expected)):
        return Measurement(part, Rule.BITWISE, 0.0, 0.0, 0.0)
    everywhere = torch.ones_like(expected, dtype=torch.bool)
    return Measurement(
        part, Rule.BITWISE, math.inf, 0.0, _distance(result, expected.double(), everywhere)
    )


def _mismatch(result: torch.Tensor, expected: torch.Tensor) -> str:
    if result.shape != expected.shape:
        return f"shape {list(result.shape)}, expected {list(expected.shape)}"
    if result.dtype != expected.dtype:
        return f"dtype {result.dtype}, expected {expected.dtype}"
    return ""


def _difference(result: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """|result - exact| in float64; 0 between equal infinities, infinite if only one is NaN."""
    ours = result.detach().double().cpu()
    same = (ours == exact) | (ours.isnan() & exact.isnan())
    return (ours - exact).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)


def _distance(result: torch.Tensor, exact: torch.Tensor, where: torch.Tensor) -> float:
    exact = exact.detach().cpu()
    return _largest(_difference(result, exact).masked_select(where.cpu()))


def _largest(values: torch.Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes, on the host."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


#: Contracts that take their options in one object -> the class of that object.
_OPTIONS: Final[Mapping[str, type]] = {
    ATTENTION.name: AttentionOptions,
    ATTENTION_MAX_LOGIT.name: AttentionOptions,
    ADAMW.name: AdamWOptions,
}


def as_arguments(contract: str, inputs: Inputs) -> dict[str, Any]:
    """A call's keyword arguments, with the contract's options gathered in their object."""
    options = _OPTIONS.get(contract)
    if options is None:
        return dict(inputs)
    own = {field.name for field in fields(options)}
    arguments = {name: value for name, value in inputs.items() if name not in own}
    chosen = {name: value for name, value in inputs.items() if name in own}
    return {**arguments, "options": options(**chosen)}


def convert_all(
    inputs: Inputs, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> dict[str, Any]:
    """Every input through :func:`convert`."""
    return {name: convert(value, dtype, device) for name, value in inputs.items()}
