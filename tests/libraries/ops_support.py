"""What tests of shims, of modules and of chains of operations share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Any

import torch

Function = Callable[..., torch.Tensor]


def late(path: str) -> Callable[..., Any]:
    """The function behind ``module:name``, which is there when its shim is."""
    return lambda *arguments, **options: resolve_name(path)(*arguments, **options)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers, the same in every call with the same arguments."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def randomize(module: torch.nn.Module) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-1, 1)


def run(module: Any, inputs: list[torch.Tensor], *more: Any) -> list[torch.Tensor]:
    """Output, then gradients of the inputs and of the parameters, in float64."""
    inputs = [one.clone().requires_grad_(one.is_floating_point()) for one in inputs]
    parameters = list(module.parameters())
    output = module(*inputs, *more)
    torch.manual_seed(2)
    differentiable = [one for one in inputs if one.requires_grad]
    weights = torch.randn(output.shape, dtype=torch.float64).to(output.dtype)
    grads = torch.autograd.grad((output * weights).sum(), [*differentiable, *parameters])
    return [one.detach().double() for one in (output, *grads)]


def expected(function: Function, module: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same of ``function(*inputs, *parameters)``, computed in float64."""
    doubles = [one.double().requires_grad_() if one.is_floating_point() else one for one in inputs]
    parameters = [one.detach().double().requires_grad_() for one in module.parameters()]
    output = function(*doubles, *parameters)
    torch.manual_seed(2)
    differentiable = [one for one in doubles if one.requires_grad]
    weights = torch.randn(output.shape, dtype=torch.float64)
    grads = torch.autograd.grad((output * weights).sum(), [*differentiable, *parameters])
    return [one.detach() for one in (output, *grads)]


def in_fp8(module: Any, recipe: Any) -> Any:
    """The module, whose forward passes are in FP8."""
    from transformer_engine.pytorch import autocast

    def forward(*inputs: Any) -> Any:
        with autocast(enabled=True, recipe=recipe):
            return module(*inputs)

    forward.parameters = module.parameters  # type: ignore[attr-defined]
    return forward


def distance(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """Largest error of any tensor, relative to its largest entry."""
    pairs = list(zip(found, wanted, strict=True))
    assert all(a.shape == b.shape for a, b in pairs)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def alike(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> bool:
    """Whether all are equal, up to float32's rounding in a few steps of an optimizer."""
    pairs = zip(found, wanted, strict=True)
    return all(torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-6) for a, b in pairs)


def halves(gate: Function) -> Function:
    def function(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return gate(a) * b

    return function
