"""Run cases: kernel, float64 reference and plain PyTorch on the same inputs, then the ladder."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from accel_bridge.apps.parity._case import Case, Inputs, convert_all
from accel_bridge.apps.parity._ladder import (
    BACKWARD_LIMIT,
    FORWARD_LIMIT,
    Measurement,
    Rule,
    bitwise,
    by_ratio,
)
from accel_bridge.kernels import CONTRACTS, Kernel

#: ``outside``: the kernel says that the call is beyond its range; the reference serves it.
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
    kernel: Kernel, cases: Sequence[Case], device: torch.device | str = "cpu"
) -> list[CaseResult]:
    """Every case of the kernel's contract, on ``device``."""
    return [run_case(case, kernel, device) for case in cases if case.contract == kernel.contract]


def run_case(case: Case, kernel: Kernel, device: torch.device | str = "cpu") -> CaseResult:
    """One case. Whatever the kernel raises is a failure with its last line as the reason.

    The references run on the host, so that every machine has the same yardstick.
    """
    inputs = case.inputs()
    try:
        reason = kernel.supports(**convert_all(inputs, device=device))
        if reason is not None:
            return CaseResult(case, "outside", reason=reason)
        if case.expected is not None:
            # Imported here: the module builds on this one.
            from accel_bridge.apps.parity._dropout import measure_dropout

            measurements = measure_dropout(case, kernel, inputs, device)
        else:
            measurements = _measure(case, kernel, inputs, device)
    except Exception as error:  # a kernel may raise anything; here that is a result
        line = traceback.format_exception_only(error)[-1].strip()
        return CaseResult(case, "fail", reason=f"raised {line}")
    passed = all(part.passed for part in measurements)
    return CaseResult(case, "pass" if passed else "fail", tuple(measurements))


def signature_difference(kernel: Kernel) -> str | None:
    """How the kernel's parameters differ from its contract's; None when they agree."""
    contract = CONTRACTS[kernel.contract]
    expected = list(inspect.signature(contract.reference).parameters.values())
    found = list(inspect.signature(kernel.function).parameters.values())
    described = [[(p.name, p.kind, p.default) for p in side] for side in (expected, found)]
    if described[0] == described[1]:
        return None
    return f"parameters {[str(p) for p in found]}, expected {[str(p) for p in expected]}"


def _measure(
    case: Case, kernel: Kernel, inputs: Inputs, device: torch.device | str
) -> list[Measurement]:
    reference = CONTRACTS[case.contract].reference
    result = evaluate(case, kernel.function, convert_all(inputs, device=device))
    plain = evaluate(case, reference, convert_all(inputs))
    if case.rule is Rule.BITWISE:
        return [bitwise(part, result[part], plain[part]) for part in plain]
    return compare(result, evaluate(case, reference, convert_all(inputs, torch.float64)), plain)


def compare(
    result: dict[str, torch.Tensor], exact: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]
) -> list[Measurement]:
    """The ratio rule for every part, results and gradients; whole numbers bitwise."""
    scales = {kind: _scale(exact, kind) for kind in (True, False)}
    measurements = []
    for part, baseline in plain.items():
        if not baseline.is_floating_point():
            measurements.append(bitwise(part, result[part], baseline))
            continue
        backward = _is_gradient(part)
        limit = BACKWARD_LIMIT if backward else FORWARD_LIMIT
        measurements.append(
            by_ratio(part, result[part], exact[part], baseline, limit, scales[backward])
        )
    return measurements


def _is_gradient(part: str) -> bool:
    return part.startswith("grad ")


def _scale(exact: dict[str, torch.Tensor], gradients: bool) -> float:
    """Largest finite value among the results, or among the gradients."""
    values = [
        float(tensor.nan_to_num(0.0, 0.0, 0.0).abs().max())
        for part, tensor in exact.items()
        if _is_gradient(part) == gradients and tensor.is_floating_point() and tensor.numel()
    ]
    return max(values, default=0.0)


def evaluate(case: Case, function: Callable[..., Any], inputs: Inputs) -> dict[str, torch.Tensor]:
    """Call ``function`` and return its results and gradients by name, on the host.

    Gradients are those of the sum of the outputs weighted by fixed random numbers.
    """
    leaves = {name: inputs[name].requires_grad_() for name in case.gradients}
    returned = function(**inputs)
    if case.changed:
        returned = [tensor for name in case.changed for tensor in _as_list(inputs[name])]
    found = dict(zip(_names(case, inputs), _as_list(returned), strict=True))
    differentiable = [tensor for tensor in found.values() if tensor.requires_grad]
    parts = {name: tensor.detach().cpu() for name, tensor in found.items()}
    if leaves:
        weights = [_weights(tensor, case.sliced_gradient) for tensor in differentiable]
        gradients = torch.autograd.grad(differentiable, list(leaves.values()), weights)
        named = zip(leaves, gradients, strict=True)
        parts |= {f"grad {name}": gradient.cpu() for name, gradient in named}
    return parts


def _names(case: Case, inputs: Inputs) -> list[str]:
    if not case.changed:
        return list(case.outputs)
    counted = [(name, _as_list(inputs[name])) for name in case.changed]
    return [
        name if len(tensors) == 1 else f"{name}[{index}]"
        for name, tensors in counted
        for index in range(len(tensors))
    ]


def _as_list(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _weights(output: torch.Tensor, sliced: bool) -> torch.Tensor:
    """Random numbers of the output's shape, equal for every precision up to rounding.

    :param sliced: their last dimension is the first half of a wider one.
    """
    generator = torch.Generator().manual_seed(20170612)
    drawn = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    # Rounded to bfloat16 first: all precisions then see exactly the same gradient.
    weights = drawn.to(torch.bfloat16).to(output)
    if sliced:
        return torch.cat((weights, torch.ones_like(weights)), -1)[..., : output.shape[-1]]
    return weights
