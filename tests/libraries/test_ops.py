"""Transformer Engine's chains of operations, against plain PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops_support import Function, distance, expected, halves, randomize, run
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


def test_main_grad(ops: Any) -> None:
    op = ops.BasicLinear(4, 3, device="cpu", accumulate_into_main_grad=True)
    x, dy = torch.randn(5, 4), torch.randn(5, 3)
    with pytest.raises(RuntimeError, match="main_grad"):
        op(x).backward(dy)
    op.weight.main_grad = torch.full((3, 4), 0.5)
    op.weight.grad_added_to_main_grad = False
    op(x).backward(dy)
    torch.testing.assert_close(op.weight.main_grad, 0.5 + dy.t() @ x)
    assert op.weight.grad_added_to_main_grad
    assert op.weight.grad.shape == (3, 4)
    op.weight.grad = None
    op.weight.overwrite_main_grad = True
    op(x).backward(dy)
    torch.testing.assert_close(op.weight.main_grad, dy.t() @ x)


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


def test_grouped_main_grads(ops: Any) -> None:
    op = ops.GroupedLinear(2, 4, 3, bias=False, device="cpu", accumulate_into_main_grad=True)
    for weight in op.parameters():
        weight.main_grad = torch.ones(3, 4)
        weight.grad_added_to_main_grad = False
    x, dy = torch.randn(5, 4), torch.randn(5, 3)
    op(x, torch.tensor([2, 3])).backward(dy)
    torch.testing.assert_close(op.weight0.main_grad, 1 + dy[:2].t() @ x[:2])
    torch.testing.assert_close(op.weight1.main_grad, 1 + dy[2:].t() @ x[2:])
    assert op.weight0.grad_added_to_main_grad


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


def test_dropout(ops: Any) -> None:
    op = ops.Dropout(0.25)
    x = torch.ones(200, 500, requires_grad=True)
    y = op(x)
    y.sum().backward()
    share = float((y == 0).double().mean())
    assert abs(share - 0.25) < 0.01
    assert torch.equal(x.grad, y)
    assert y.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert op.eval()(x).data_ptr() == x.data_ptr()


def fp8(recipe: Any) -> Any:
    from transformer_engine.pytorch import autocast

    return autocast(enabled=True, recipe=recipe)


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
    chosen = getattr(recipe, name)()

    def quantized(*inputs: torch.Tensor) -> torch.Tensor:
        with fp8(chosen):
            output: torch.Tensor = chain(*inputs)
        return output

    quantized.parameters = chain.parameters  # type: ignore[attr-defined]
    run(quantized, [x])  # delayed scaling learns its scales
    error = distance(run(quantized, [x]), exact)
    assert 5e-3 < error < 0.3


def test_fp8_state_in_checkpoints(ops: Any) -> None:
    from transformer_engine.common.recipe import DelayedScaling

    torch.manual_seed(5)
    chain, copy = (ops.Sequential(ops.Linear(16, 16, device="cpu")) for _ in range(2))
    x = torch.randn(16, 16)
    with fp8(DelayedScaling(amax_history_len=4)):
        chain(x * 3).sum().backward()
    state = chain.state_dict()
    assert list(state) == [
        *("0.basic_ops.0.weight", "0.basic_ops.0._extra_state"),
        *("0.basic_ops.1.bias", "0.basic_ops.1._extra_state"),
    ]
    copy.load_state_dict(state)
    scale = chain[0].basic_ops[0].get_quantizer("forward", 0).scale
    assert scale.item() != 1.0
    assert torch.equal(copy[0].basic_ops[0].get_quantizer("forward", 0).scale, scale)
    with fp8(DelayedScaling(amax_history_len=4)):
        assert torch.equal(copy(x), chain(x))


def test_without_gradients_the_input_stays_as_it_is(ops: Any) -> None:
    x = torch.ones(3, requires_grad=True)
    chain = ops.Sequential(ops.Identity(), ops.MakeExtraOutput())
    with torch.no_grad():
        first, second = chain(x)
        chain(2 * x)
    assert x.requires_grad
    assert first.data_ptr() == second.data_ptr() == x.data_ptr()
    assert ops.ConstantScale(2.0)(torch.ones(3)).requires_grad is False


def test_parameters_on_meta_are_made_by_the_first_pass(ops: Any) -> None:
    chain = ops.Sequential(
        ops.LayerNorm(8, device="meta"),
        ops.Linear(8, 8, device="meta"),
        ops.GroupedLinear(2, 8, 8, device="meta"),
    )
    assert all(one.device.type == "meta" for one in chain.parameters())
    chain(torch.ones(4, 8), torch.tensor([1, 3]))
    owners = [chain[0], *chain[1].basic_ops, chain[2]]
    assert all(one.device.type == "cpu" for op in owners for one in op.parameters())
    assert chain[0].weight.tolist() == [1.0] * 8
