"""Transformer Engine's chains of operations, against plain PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops_support import Function, distance, expected, halves, in_fp8, randomize, run
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("on_device")


def quick(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


def gelu(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


def squared(x: torch.Tensor) -> torch.Tensor:
    return functional.relu(x).square()


def clamped(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return quick(a.clamp(max=7.0)) * (b.clamp(-7.0, 7.0) + 1)


ACTIVATIONS: dict[str, Function] = {
    "GELU": gelu,
    "QGELU": quick,
    "ReLU": functional.relu,
    "SReLU": squared,
    "SiLU": functional.silu,
    "GLU": halves(torch.sigmoid),
    "GEGLU": halves(gelu),
    "QGEGLU": halves(quick),
    "ReGLU": halves(functional.relu),
    "SReGLU": halves(squared),
    "SwiGLU": halves(functional.silu),
    "ClampedSwiGLU": clamped,
    "L2Normalization": lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float32, 2e-6), (torch.bfloat16, 8e-3), (torch.float16, 1e-3)]
)
def test_functions_are_rounded_once(ops: Any, name: str, dtype: torch.dtype, limit: float) -> None:
    op = getattr(ops, name)()
    torch.manual_seed(0)
    x = (4 * torch.randn(3, 5, 16)).to(dtype)
    found = run(op, [x])
    assert distance(found, expected(ACTIVATIONS[name], op, [x])) < limit
    injected = expected(lambda x: 1.01 * ACTIVATIONS[name](x), op, [x])
    assert distance(found, injected) > limit


def mlp(ops: Any, norm: str, centered: bool, gate: str, dtype: torch.dtype) -> Any:
    options = {"device": "cpu", "dtype": dtype}
    chain = ops.Sequential(
        getattr(ops, norm)(8, zero_centered_gamma=centered, **options),
        ops.Linear(8, 24, **options),
        getattr(ops, gate)(),
        ops.Linear(12 if gate == "SwiGLU" else 24, 8, bias=False, **options),
        ops.ConstantScale(0.5),
    )
    randomize(chain)
    return chain


def plain_mlp(norm: str, centered: bool, gate: str) -> Function:
    def function(x: torch.Tensor, gamma: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        if norm == "LayerNorm":
            beta, *rest = rest  # type: ignore[assignment]
            x = functional.layer_norm(x, (8,), eps=1e-5)
        else:
            beta = torch.zeros(())
            x = functional.rms_norm(x, (8,), eps=1e-5)
        first, bias, second = rest
        x = functional.linear(x * (gamma + centered) + beta, first, bias)
        return 0.5 * functional.linear(ACTIVATIONS[gate](x), second)

    return function


@pytest.mark.parametrize("gate", ["SwiGLU", "GELU"])
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("norm", ["LayerNorm", "RMSNorm"])
def test_mlp(ops: Any, norm: str, centered: bool, gate: str) -> None:
    chain = mlp(ops, norm, centered, gate, torch.float32)
    x = torch.randn(3, 2, 8)
    found = run(chain, [x])
    assert distance(found, expected(plain_mlp(norm, centered, gate), chain, [x])) < 1e-5
    wrong = expected(plain_mlp(norm, not centered, gate), chain, [x])
    assert distance(found, wrong) > 1e-2


def grouped(*arguments: torch.Tensor) -> torch.Tensor:
    """Three linear layers on 4, 0 and 3 rows, and each row times its scale."""
    x, _, *parameters = arguments
    weights, biases = parameters[:3], parameters[3:]
    rows = zip(x.split([4, 0, 3]), weights, biases, strict=True)
    return torch.cat([functional.linear(*layer) for layer in rows])


def test_grouped_linear(ops: Any) -> None:
    op = ops.GroupedLinear(3, 8, 4, device="cpu")
    randomize(op)
    x, counts = torch.randn(7, 8), torch.tensor([4, 0, 3])
    found = run(op, [x, counts])
    wanted = expected(grouped, op, [x, counts])
    # Gradients of the group without rows are zeros.
    pairs = [(a, b) for a, b in zip(found, wanted, strict=True) if b.abs().max() > 0]
    assert distance([a for a, _ in pairs], [b for _, b in pairs]) < 1e-5
    assert found[3].abs().max() == 0
    swapped = run(op, [x, torch.tensor([3, 0, 4])])
    assert distance(swapped[:2], wanted[:2]) > 1e-2
    assert [name for name, _ in op.named_parameters()] == [
        *("weight0", "weight1", "weight2", "bias0", "bias1", "bias2")
    ]
    with pytest.raises(ValueError, match="Expected 3 splits, but got 2"):
        op(x, torch.tensor([4, 3]))


@pytest.mark.parametrize("block", [None, 2])
def test_scaled_swiglu(ops: Any, block: int | None) -> None:
    def function(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        if block is not None:
            x = x.view(5, 2, 2, block).transpose(1, 2).reshape(5, 8)
        return halves(functional.silu)(x) * scales[:, None]

    op = ops.ScaledSwiGLU(glu_interleave_size=block)
    inputs = [torch.randn(5, 8), torch.rand(5)]
    found = run(op, inputs)
    assert distance(found, expected(function, op, inputs)) < 1e-6
    other = ops.ScaledSwiGLU(glu_interleave_size=4)
    assert distance(run(other, inputs), expected(function, op, inputs)) > 1e-2 or block is None


@pytest.mark.parametrize("name", ["DelayedScaling", "Float8CurrentScaling"])
def test_fp8_chain(ops: Any, name: str) -> None:
    from transformer_engine.common import recipe

    torch.manual_seed(4)
    options = {"device": "cpu", "dtype": torch.bfloat16}
    chain = ops.Sequential(
        ops.RMSNorm(32, **options),
        ops.Linear(32, 64, **options),
        ops.SwiGLU(),
        ops.Linear(32, 32, **options),
    )
    x = torch.randn(16, 32).bfloat16()
    exact = run(chain, [x])
    quantized = in_fp8(chain, getattr(recipe, name)())
    run(quantized, [x])  # delayed scaling learns its scales
    error = distance(run(quantized, [x]), exact)
    assert 5e-3 < error < 0.3
