"""The stand-in's chains of operations, against plain PyTorch in float64."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from accel_bridge import BridgeError

Function = Callable[..., torch.Tensor]


@pytest.fixture(scope="module", autouse=True)
def ops(te: Any) -> Any:
    """``transformer_engine.pytorch.ops`` of the stand-in, on the CPU."""
    return importlib.import_module("transformer_engine.pytorch.ops")


def randomize(module: torch.nn.Module) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-1, 1)


def run(module: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Output, then gradients of the inputs and of the parameters, in float64."""
    inputs = [one.clone().requires_grad_(one.is_floating_point()) for one in inputs]
    parameters = list(module.parameters())
    output = module(*inputs)
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


def distance(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """Largest error of any tensor, relative to its largest entry."""
    pairs = list(zip(found, wanted, strict=True))
    assert all(a.shape == b.shape for a, b in pairs)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def halves(gate: Function) -> Function:
    def function(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return gate(a) * b

    return function


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
    planted = expected(lambda x: 1.01 * ACTIVATIONS[name](x), op, [x])
    assert distance(found, planted) > limit


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


def test_main_grad(ops: Any) -> None:
    op = ops.BasicLinear(4, 3, device="cpu", accumulate_into_main_grad=True)
    x, dy = torch.randn(5, 4), torch.randn(5, 3)
    with pytest.raises(RuntimeError, match="no main_grad"):
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


def test_refusals(ops: Any) -> None:
    from transformer_engine.common.recipe import Float8BlockScaling

    with pytest.raises(BridgeError, match="user buffers"):
        ops.BasicLinear(8, 8, device="cpu", userbuffers_options={"comm_name": "fc1"})
    with pytest.raises(ValueError, match="Expected 1 extra inputs but got 0"):
        ops.AddExtraInput()(torch.ones(2))
    with pytest.raises(ValueError, match="not compatible"):
        ops.RMSNorm(8, device="cpu")(torch.ones(2, 4))
    with (
        fp8(Float8BlockScaling()),
        pytest.raises(NotImplementedError, match="do not support FP8 block scaling"),
    ):
        ops.BasicLinear(16, 16, device="cpu")(torch.ones(16, 16))


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
