"""The shim's fused operations compute what those do that they replace, and round once."""

from __future__ import annotations

import importlib
import weakref
from typing import Any

import pytest
import torch
from ops_support import Function, distance, randomize, run


def residual(ops: Any, place: str, low: bool) -> tuple[Any, list[torch.Tensor], str]:
    """A chain in which one fusion is possible, its inputs, and the fusion's name."""
    options = {"device": "cpu", "dtype": torch.bfloat16 if low else torch.float32}
    x, y = torch.randn(6, 8), torch.randn(6, 8)
    chains: dict[str, tuple[list[Any], list[torch.Tensor]]] = {
        "ForwardLinearBiasActivation": ([ops.Linear(8, 8, **options)], [x]),
        "ForwardLinearBiasAdd": (
            [ops.Identity(), ops.Linear(8, 8, **options), ops.AddExtraInput(in_place=True)],
            [x, y],
        ),
        "ForwardLinearScaleAdd": (
            [
                ops.Linear(8, 8, bias=False, **options),
                ops.ConstantScale(-1.5),
                ops.AddExtraInput(in_place=True),
            ],
            [x, y],
        ),
        "BackwardLinearScale": (
            [ops.Linear(8, 8, bias=False, **options), ops.ConstantScale(-1.5)],
            [x],
        ),
        "BackwardLinearAdd": (
            [ops.MakeExtraOutput(in_place=True), ops.Linear(8, 8, bias=False, **options)],
            [x],
        ),
        "BackwardAddRMSNorm": ([ops.MakeExtraOutput(), ops.RMSNorm(8, **options)], [x]),
    }
    modules, inputs = chains[place]
    chain = ops.Sequential(*modules)
    randomize(chain)
    return chain, [one.to(options["dtype"]) for one in inputs], place


class Joined(torch.nn.Module):
    """A chain with one extra output, which is added to its output."""

    def __init__(self, chain: Any) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        # An extra input may be changed in place.
        output = self.chain(*(one.clone() for one in inputs))
        return sum(output[1:], output[0]) if isinstance(output, tuple) else output


FUSIONS = (
    "ForwardLinearBiasActivation",
    "ForwardLinearBiasAdd",
    "ForwardLinearScaleAdd",
    "BackwardLinearScale",
    "BackwardLinearAdd",
    "BackwardAddRMSNorm",
)


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("name", FUSIONS)
def test_fusions_compute_what_they_stand_for(
    ops: Any, monkeypatch: pytest.MonkeyPatch, name: str, low: bool
) -> None:
    fuser = ops.fuser.OperationFuser
    torch.manual_seed(3)
    chain, inputs, _ = residual(ops, name, low)
    fused = run(Joined(chain), inputs)
    steps = [*chain._module_groups[0]._forward_ops, *chain._module_groups[0]._backward_ops]
    found = {type(step[0]).__name__ for step in steps}
    assert (name in found) == (low or name != "ForwardLinearBiasActivation")
    monkeypatch.setattr(fuser, "forward_fusion_functions", [])
    monkeypatch.setattr(fuser, "backward_fusion_functions", [])
    torch.manual_seed(3)
    alone, inputs, _ = residual(ops, name, low)
    limit = 2e-2 if low else 1e-6
    assert distance(fused, run(Joined(alone), inputs)) < limit
    with torch.no_grad():
        next(iter(alone.parameters())).mul_(1.1)
    assert distance(fused, run(Joined(alone), inputs)) > limit


def test_a_fusion_that_loses_an_operation_is_refused(
    ops: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fusions = [lambda ops, recipe: ops[1:]]
    monkeypatch.setattr(ops.fuser.OperationFuser, "forward_fusion_functions", fusions)
    with pytest.raises(RuntimeError, match="Found mismatch after fusing"):
        ops.Sequential(ops.Identity(), ops.ConstantScale(2.0))(torch.ones(2))


class _Rounding:
    """A kernel that rounds its gradient to its input's dtype, as those of a GPU do."""

    is_reference = False

    def __init__(self, function: Function) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._function(*args, **kwargs)


def test_a_norms_gradient_and_the_one_beside_it_are_rounded_once(
    ops: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    norm = ops.RMSNorm(64, dtype=torch.bfloat16, eps=0.3)
    module = importlib.import_module(type(norm).__mro__[1].__module__)
    kernel = module.kernel
    monkeypatch.setattr(module, "kernel", lambda contract: _Rounding(kernel(contract)))
    torch.manual_seed(3)
    x, above, beside = (torch.randn(64, 64).bfloat16() for _ in range(3))
    exact = x.double().requires_grad_()
    normal = exact / torch.sqrt(0.3 + exact.square().mean(-1, keepdim=True))
    (normal * above.double() + exact * beside.double()).sum().backward()

    def error(**changes: Any) -> float:
        inputs = x.clone().requires_grad_()
        chain = ops.Sequential(ops.MakeExtraOutput(), norm)
        for name, change in changes.items():
            monkeypatch.setattr(type(norm), name, change)
        results = chain(inputs)
        (results[0] * above + results[1] * beside).sum().backward()
        limit = 1e-5 + 1.6e-2 * exact.grad.abs()
        return float(((inputs.grad.double() - exact.grad).abs() / limit).max())

    assert error() < 1
    # Rounded before the sum, small results of large terms are lost.
    assert error(wide_backward=type(norm)._backward) > 10


def test_a_recorded_result_is_not_kept(ops: Any) -> None:
    tape = ops._tape.Tape(torch.exp, torch.ones(3))
    kept = weakref.ref(tape.take_result().untyped_storage())
    # The exponential function saves its result; a product with a number saves nothing.
    assert kept() is not None
    tape = ops._tape.Tape(lambda x: x * 2.0, torch.ones(3))
    result = tape.take_result()
    assert tape.gradients(torch.full((3,), 5.0))[0].tolist() == [10.0] * 3
    assert result.tolist() == [2.0] * 3
    assert not result.requires_grad
