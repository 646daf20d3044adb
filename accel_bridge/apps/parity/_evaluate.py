"""Call a function on a case's inputs, and compare what two calls gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from accel_bridge.apps.parity._case import Case, Inputs, as_arguments
from accel_bridge.apps.parity._tolerances import (
    BACKWARD_LIMIT,
    FORWARD_LIMIT,
    Measurement,
    bitwise,
    by_ratio,
)


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
    returned = function(**as_arguments(case.contract, inputs))
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
    if isinstance(value, (list, tuple)):
        return [one for one in value if one is not None]
    return [value]


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
