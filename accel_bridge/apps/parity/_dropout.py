"""Parity with dropout: the kernel's own random mask is read from its output and then imposed.

Cases are built so that an element that was kept is never zero (values the identity matrix,
residual zero). The reference then gets the mask the kernel drew, so forward and backward are
compared like any other call. The mask itself is tested too: it has the right rate; one seed gives
the same mask in forward and backward; another seed gives another mask; the next call draws a new
one; and neighbours (heads, rows, batch rows) differ as independent draws do.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from accel_bridge.apps.parity._case import Case, Inputs, convert_all
from accel_bridge.apps.parity._evaluate import compare, evaluate
from accel_bridge.apps.parity._tolerances import Measurement, Rule, bitwise
from accel_bridge.kernels import Kernel

_SEED = 1234
#: Elements of the result without dropout that are below this share of the largest are not counted:
#: they may round to zero.
_COUNTED = 1e-3
#: Standard deviations that a share of elements may be off.
_DEVIATIONS = 5.0


def measure_dropout(
    case: Case, kernel: Kernel[Any, Any], inputs: Inputs, device: torch.device | str
) -> list[Measurement]:
    """The ratio rule under the kernel's own mask, and the tests of that mask."""
    result = _seeded(case, kernel, inputs, device, _SEED)
    following = evaluate(case, kernel.function, convert_all(inputs, device=device))
    again = _seeded(case, kernel, inputs, device, _SEED)
    other = _seeded(case, kernel, inputs, device, _SEED + 1)
    (name,) = case.outputs
    kept = result[name] != 0
    exact = _expected(case, convert_all(inputs, torch.float64), kept)
    plain = _expected(case, convert_all(inputs), kept)
    whole = _expected(case, convert_all(inputs, torch.float64), torch.ones_like(kept))[name]
    counted = whole.abs() > _COUNTED * whole.abs().max()
    rate = inputs["dropout"]
    return [
        *compare(result, exact, plain),
        _share("dropped share", ~kept, counted, rate),
        _independent("next call", kept, following[name] != 0, counted, rate),
        *_neighbours(kept, counted, rate),
        bitwise("same seed", again[name], result[name]),
        _differs(other[name], result[name]),
    ]


def _seeded(
    case: Case, kernel: Kernel[Any, Any], inputs: Inputs, device: torch.device | str, seed: int
) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return evaluate(case, kernel.function, convert_all(inputs, device=device))


def _expected(case: Case, inputs: Inputs, kept: torch.Tensor) -> dict[str, torch.Tensor]:
    expected = case.expected
    assert expected is not None

    def function(**arguments: Any) -> torch.Tensor:
        return expected(inputs, kept)  # the same tensors, each input by its name

    return evaluate(case, function, inputs)


def _share(part: str, event: torch.Tensor, counted: torch.Tensor, expected: float) -> Measurement:
    """How far the counted elements' share of ``event`` is from ``expected``, in deviations."""
    total = int(counted.sum())
    share = float((event & counted).sum()) / total
    off = abs(share - expected) / math.sqrt(expected * (1 - expected) / total)
    return Measurement(part, Rule.TOLERANCE, off, _DEVIATIONS, abs(share - expected))


def _independent(
    part: str, kept: torch.Tensor, other: torch.Tensor, counted: torch.Tensor, dropout: float
) -> Measurement:
    """Whether two masks agree as often as independent ones do."""
    return _share(part, kept == other, counted, dropout**2 + (1 - dropout) ** 2)


def _neighbours(kept: torch.Tensor, counted: torch.Tensor, dropout: float) -> list[Measurement]:
    """Every second element of a dimension against the one before it, for every dimension."""
    found = []
    for dimension, size in enumerate(kept.shape):
        even = torch.arange(0, size - 1, 2)
        first, second, both, each = (
            tensor.index_select(dimension, index)
            for tensor in (kept, counted)
            for index in (even, even + 1)
        )
        if len(even):
            part = f"neighbours in dimension {dimension}"
            found.append(_independent(part, first, second, both & each, dropout))
    return found


def _differs(other: torch.Tensor, result: torch.Tensor) -> Measurement:
    same = torch.equal(other, result)
    note = "another seed gives the same mask" if same else ""
    return Measurement("other seed", Rule.BITWISE, math.inf if same else 0.0, 0.0, 0.0, note=note)
