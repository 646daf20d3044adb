"""Run cases: kernel, float64 reference and plain PyTorch on the same inputs, then tolerances."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from accel_bridge.apps.parity._case import Case, Inputs, as_arguments, convert_all
from accel_bridge.apps.parity._dropout import measure_dropout
from accel_bridge.apps.parity._evaluate import compare, evaluate
from accel_bridge.apps.parity._tolerances import Measurement, Rule, bitwise
from accel_bridge.kernels import CONTRACTS, Kernel

#: ``outside``: the kernel reports that the call is outside its range; the reference serves it.
Verdict = Literal["pass", "fail", "outside"]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What one case showed.

    :param measurements: every part that was compared.
    :param reason: why the call is outside the kernel's range, or the error it raised.
    """

    case: Case
    verdict: Verdict
    measurements: tuple[Measurement, ...] = ()
    reason: str = ""

    @property
    def severity(self) -> float:
        """Ratio over limit of the worst part; above 1 is a failure."""
        if self.verdict == "fail" and not self.measurements:
            return float("inf")
        return max((part.severity for part in self.measurements), default=-1.0)

    @property
    def worst(self) -> Measurement | None:
        """The part furthest from the reference."""
        return max(self.measurements, key=lambda part: part.severity, default=None)


def check_kernel(
    kernel: Kernel[Any, Any], cases: Sequence[Case], device: torch.device | str = "cpu"
) -> list[CaseResult]:
    """Every case of the kernel's contract, on ``device``."""
    name = kernel.contract.name
    return [run_case(case, kernel, device) for case in cases if case.contract == name]


def run_case(
    case: Case, kernel: Kernel[Any, Any], device: torch.device | str = "cpu"
) -> CaseResult:
    """One case. Any exception from the kernel is a failure with its last line as the reason.

    The references run on the host, so that every machine has the same yardstick.
    """
    inputs = case.inputs()
    try:
        reason = kernel.supports(**as_arguments(case.contract, convert_all(inputs, device=device)))
        if reason is not None:
            return CaseResult(case, "outside", reason=reason)
        if case.expected is not None:
            measurements = measure_dropout(case, kernel, inputs, device)
        else:
            measurements = _measure(case, kernel, inputs, device)
    except Exception as error:  # a kernel may raise anything; here that is a result
        line = traceback.format_exception_only(error)[-1].strip()
        return CaseResult(case, "fail", reason=f"raised {line}")
    passed = all(part.passed for part in measurements)
    return CaseResult(case, "pass" if passed else "fail", tuple(measurements))


def signature_difference(kernel: Kernel[Any, Any]) -> str | None:
    """How the kernel's parameters differ from its contract's; None when they agree.

    ``supports`` must take each of them by its name.
    """
    expected = list(inspect.signature(kernel.contract.reference).parameters.values())
    found = list(inspect.signature(kernel.function).parameters.values())
    described = [[(p.name, p.kind, p.default) for p in side] for side in (expected, found)]
    if described[0] != described[1]:
        return f"parameters {[str(p) for p in found]}, expected {[str(p) for p in expected]}"
    try:
        inspect.signature(kernel.supports).bind(**{p.name: None for p in expected})
    except TypeError as error:
        return f"supports: {error}"
    return None


def _measure(
    case: Case, kernel: Kernel[Any, Any], inputs: Inputs, device: torch.device | str
) -> list[Measurement]:
    result = evaluate(case, kernel.function, convert_all(inputs, device=device))
    plain, exact = _yardstick(case, inputs)
    if case.rule is Rule.BITWISE:
        return [bitwise(part, result[part], plain[part]) for part in plain]
    return compare(result, exact, plain)


def _yardstick(
    case: Case, inputs: Inputs
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What plain PyTorch gives for a case: in its precision, and in float64 unless bitwise."""
    reference = CONTRACTS[case.contract].reference
    plain = evaluate(case, reference, convert_all(inputs))
    if case.rule is Rule.BITWISE:
        return plain, plain
    return plain, evaluate(case, reference, convert_all(inputs, torch.float64))
