"""Transformer Engine's modules of the shim, against plain PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from te_support import inside, recipes
from torch.nn import functional

from accel_bridge import BridgeError
from accel_bridge.kernels import GROUPED_MATMUL, GROUPED_WEIGHT_GRADIENT

#: Largest error of float32 modules, relative to the largest entry.
TOLERANCE: Final = 1e-5

#: Without those of the kernel contracts, which have tests of their own.
ACTIVATIONS: Final = (
    *("gelu", "geglu", "glu", "qgelu", "qgeglu", "relu", "reglu", "silu", "srelu", "sreglu"),
    "clamped_swiglu",
)

Formula = Callable[..., torch.Tensor]


def randomize(module: torch.nn.Module) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-1, 1)


def run(function: Formula, x: torch.Tensor, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """Output, gradients of x and of the parameters, in float64."""
    x = x.clone().requires_grad_()
    output = function(x)
    torch.manual_seed(2)
    weights = torch.randn(output.shape, dtype=torch.float64).to(output.dtype)
    gradients = torch.autograd.grad((output * weights).sum(), [x, *parameters])
    return [one.detach().double() for one in (output, *gradients)]


def distance(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """Largest error of any tensor, relative to its largest entry."""
    return max(
        float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, wanted, strict=True)
    )


def error(module: Any, formula: Formula, x: torch.Tensor) -> float:
    """Of a module against ``formula(x, *parameters)`` in float64."""
    randomize(module)
    doubles = [one.detach().double().requires_grad_() for one in module.parameters()]
    wanted = run(lambda one: formula(one, *doubles), x.double(), doubles)
    return distance(run(module, x, list(module.parameters())), wanted)


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias, 1e-5)


def normed(x: torch.Tensor, gamma: Any, beta: Any, weight: Any, bias: Any) -> torch.Tensor:
    return functional.linear(layer(x, gamma, beta), weight, bias)


def mlp(x: Any, gamma: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> torch.Tensor:
    a, b = functional.linear(rms(x, gamma), w1, b1).chunk(2, -1)
    return functional.linear(functional.silu(a) * b, w2, b2)


def centered(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    return rms(x, 1 + gamma)


#: module, formula, a formula with an error.
MODULES: Final[dict[str, tuple[Callable[[Any], Any], Formula, Formula]]] = {
    "linear": (
        lambda te: te.Linear(8, 6),
        functional.linear,
        lambda x, w, b: functional.linear(x, w, 1.001 * b),
    ),
    "split": (
        lambda te: te.Linear(8, 6, parameters_split={"q_": 4, "k": 2}, bias=False),
        lambda x, q, k: functional.linear(x, torch.cat([q, k])),
        lambda x, q, k: functional.linear(x, torch.cat([q, k]).flip(0)),
    ),
    "norm": (lambda te: te.LayerNorm(8), layer, lambda x, w, b: layer(x, w, b + 1e-3)),
    "zero-centered": (lambda te: te.RMSNorm(8, zero_centered_gamma=True), centered, rms),
    "norm and linear": (
        lambda te: te.LayerNormLinear(8, 6),
        normed,
        lambda x, g, b, w, c: functional.linear(layer(x, g, 0 * b), w, c),
    ),
    "mlp": (
        lambda te: te.LayerNormMLP(8, 12, normalization="RMSNorm", activation="swiglu"),
        mlp,
        lambda x, g, w1, b1, w2, b2: mlp(x, g, w1.flip(0), b1.flip(0), w2, b2),
    ),
    "mlp that computes again": (
        lambda te: te.LayerNormMLP(
            8, 12, normalization="RMSNorm", activation="swiglu", checkpoint=True
        ),
        mlp,
        lambda x, g, w1, b1, w2, b2: mlp(x, g, w1, b1, w2, 1.001 * b2),
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_module_matches_its_formula(te: Any, name: str) -> None:
    make, formula, planted = MODULES[name]
    x = torch.randn(3, 2, 8)
    assert error(make(te), formula, x) < TOLERANCE
    assert error(make(te), planted, x) > 10 * TOLERANCE


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(te: Any, name: str) -> None:
    activations = inside("module._activations")
    gates: dict[str, Formula] = {
        "gelu": lambda x: functional.gelu(x, approximate="tanh"),
        "qgelu": lambda x: x * torch.sigmoid(1.702 * x),
        "relu": functional.relu,
        "srelu": lambda x: functional.relu(x) ** 2,
        "silu": functional.silu,
        "lu": torch.sigmoid,
    }

    def formula(x: torch.Tensor) -> torch.Tensor:
        if name == "clamped_swiglu":
            a, b = x.chunk(2, -1)
            a = a.clamp(max=7.0)
            return a * torch.sigmoid(1.702 * a) * (b.clamp(-7.0, 7.0) + 1)
        if not name.endswith("glu"):
            return gates[name](x)
        a, b = x.chunk(2, -1)
        return gates[name.replace("glu", "lu")](a) * b

    x = 6 * torch.randn(4, 8)
    found = run(activations.activation(name, None), x, [])
    wanted = run(formula, x.double(), [])
    assert distance(found, wanted) < TOLERANCE
    assert distance(found, [wanted[0], wanted[1] * 1.001]) > 10 * TOLERANCE


def test_user_buffers_are_refused(te: Any) -> None:
    options: dict[str, Any] = {"sequence_parallel": True, "ub_overlap_ag": True}
    te.Linear(8, 6, parallel_mode="column", **options)  # one rank: nothing to overlap
    with pytest.raises(BridgeError, match="ub_overlap_ag=True needs"):
        te.Linear(8, 6, parallel_mode="column", tp_size=2, **options)
    with pytest.raises(BridgeError, match="initialize_ub"):
        te.initialize_ub([8, 8], 2)


def test_grouped_linear_is_its_layers(te: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = [3, 0, 4]
    grouped = te.GroupedLinear(3, 8, 6)
    randomize(grouped)
    x = torch.randn(7, 8)

    def formula(rows: torch.Tensor) -> torch.Tensor:
        parts = [
            functional.linear(part, getattr(grouped, f"weight{i}"), getattr(grouped, f"bias{i}"))
            for i, part in enumerate(rows.split(splits))
        ]
        return torch.cat(parts)

    parameters = list(grouped.parameters())
    wanted = [one.nan_to_num() for one in run(formula, x, parameters)]
    found = run(lambda rows: grouped(rows, splits), x, parameters)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, wanted, strict=True))
    wrong = run(lambda rows: grouped(rows, [3, 4, 0]), x, parameters)
    assert not torch.allclose(wrong[0], wanted[0], atol=1e-3)


def test_stacked_experts_are_one_product(te: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = inside("module._grouped_function")
    calls: list[tuple[int, ...]] = []
    original = functions.kernel

    def counted(*args: Any) -> Any:
        calls.append(args[1].shape)
        return GROUPED_MATMUL.reference(*args)

    only_wide = GROUPED_MATMUL.kernel(
        counted, "a test", lambda x, weight, counts: "narrow" if x.shape[1] < 6 else None
    )
    monkeypatch.setattr(
        functions,
        "kernel",
        lambda contract: only_wide if contract is GROUPED_MATMUL else original(contract),
    )
    grouped = te.GroupedLinear(2, 8, 6, bias=False)
    assert grouped.weight0._version == 1, "a count of writes for each weight"
    x = torch.randn(5, 8, requires_grad=True)
    together = grouped(x, [2, 3])
    together.sum().backward()
    assert calls == [(2, 8, 6), (2, 6, 8)]
    # Large products, narrow ones, and weights that are not neighbours, are separate.
    monkeypatch.setattr(functions, "MUCH", 1)
    apart = grouped(x, [2, 3])
    assert torch.allclose(apart, together, atol=1e-6)
    monkeypatch.undo()
    monkeypatch.setattr(functions, "kernel", lambda contract: only_wide)
    te.GroupedLinear(2, 4, 6, bias=False)(torch.randn(5, 4), [2, 3])
    first = grouped.weight0.data
    grouped.weight0.data = first.clone()
    assert torch.allclose(grouped(x, [2, 3]), together, atol=1e-6)
    grouped.weight0.data, grouped.weight1.data = grouped.weight1.data, first
    grouped(x, [2, 3])
    assert len(calls) == 2


@pytest.mark.parametrize("overwrites", [False, True])
def test_experts_gradients_are_added_in_one_launch(
    te: Any, monkeypatch: pytest.MonkeyPatch, overwrites: bool
) -> None:
    functions = inside("module._grouped_function")
    calls: list[list[int]] = []
    original = functions.kernel

    def counted(*args: Any) -> None:
        calls.append(args[4])
        GROUPED_WEIGHT_GRADIENT.reference(*args)

    ours = GROUPED_WEIGHT_GRADIENT.kernel(counted, "a test")
    monkeypatch.setattr(
        functions,
        "kernel",
        lambda contract: ours if contract is GROUPED_WEIGHT_GRADIENT else original(contract),
    )
    grouped = te.GroupedLinear(3, 4, 6, bias=False, fuse_wgrad_accumulation=True)
    x, splits = torch.randn(9, 4), [2, 0, 7]
    gradient = torch.randn(9, 6)
    # The last expert's sums come first, as in the buffers of data parallelism.
    buffer = torch.ones(3 * 24)
    weights = list(grouped.parameters())
    for place, weight in enumerate(reversed(weights)):
        weight.main_grad = buffer[24 * place : 24 * (place + 1)].view(6, 4)
        weight.overwrite_main_grad = overwrites
    grouped(x, splits).backward(gradient)
    assert calls == [[48, 24, 0]]
    for weight, rows, of_rows in zip(weights, x.split(splits), gradient.split(splits), strict=True):
        torch.testing.assert_close(weight.main_grad, of_rows.t() @ rows + (not overwrites))
    # Sums of their own are added one by one.
    weights[1].main_grad = torch.zeros(6, 4)
    grouped(x, splits).backward(gradient)
    assert len(calls) == 1


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_draws_the_same_again(te: Any, reentrant: bool) -> None:
    distributed = inside("distributed")
    tracker = distributed.CudaRNGStatesTracker()
    tracker.add("model-parallel-rng", 3)

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = te.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with tracker.fork():
                hidden = functional.dropout(self.layer(x), 0.5)
            return functional.dropout(hidden, 0.5)

    block = Block()
    states = tracker.get_states()

    def gradients(again: bool) -> list[torch.Tensor]:
        tracker.set_states(dict(states))
        torch.manual_seed(5)
        x = torch.ones(4, 8, requires_grad=True)
        options = {"use_reentrant": reentrant, "get_rng_state_tracker": lambda: tracker}
        out = distributed.checkpoint(block, x, **options) if again else block(x)
        torch.rand(3)
        block.zero_grad()
        out.square().sum().backward()
        assert block.layer.weight.grad is not None
        return [out.detach(), x.grad, block.layer.weight.grad.clone(), torch.rand(1)]

    for one, other in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(one, other)


def test_a_recomputed_layer_may_return_its_bias(te: Any) -> None:
    """A parameter that autograd takes for a result would lead back to the recomputation."""
    from transformer_engine.pytorch.distributed import checkpoint

    layer = te.Linear(8, 8, return_bias=True)
    out, bias = checkpoint(layer, torch.ones(4, 8, requires_grad=True))
    assert layer.bias.is_leaf
    (out.sum() + 3 * bias.sum()).backward()
    assert layer.bias.grad.tolist() == [3.0] * 8


@pytest.mark.parametrize("name", ["delayed", "tensorwise", "blockwise"])
@pytest.mark.parametrize("kind", ["Linear", "LayerNormLinear", "LayerNormMLP", "GroupedLinear"])
def test_fp8_is_near_and_not_the_same(te: Any, kind: str, name: str) -> None:
    grouped = kind == "GroupedLinear"
    module = te.GroupedLinear(2, 128, 128) if grouped else getattr(te, kind)(128, 128)
    splits = ([16, 16],) if grouped else ()
    x = torch.randn(32, 128)
    parameters = [one for one in module.parameters() if one.dim() == 2]

    def fp8(rows: torch.Tensor) -> torch.Tensor:
        with te.autocast(enabled=True, recipe=recipes()[name]):
            out: torch.Tensor = module(rows, *splits)
        return out

    run(fp8, x, parameters)  # delayed scaling takes its scales from the pass before
    wanted = run(lambda rows: module(rows, *splits), x, parameters)
    found = run(fp8, x, parameters)
    off = [float((a - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)]
    assert max(off) < 0.12, off
    assert min(off) > 1e-3, off


def test_padding_and_back(te: Any) -> None:
    x = torch.randn(5, 4, requires_grad=True)
    padded, counts = te.Fp8Padding(3, align_size=4)(x, [1, 0, 4])
    assert counts == [4, 0, 4]
    assert torch.equal(padded[0], x[0])
    assert not padded[1:4].any()
    back = te.Fp8Unpadding(3, align_size=4)(padded, [1, 0, 4])
    assert torch.equal(back, x)
    (back * torch.arange(5.0)[:, None]).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.arange(5.0)[:, None].expand(5, 4))


def test_offload_brings_tensors_back(te: Any) -> None:
    offload = inside("_offload")
    state = offload.OffloadableLayerState(torch.cuda.Stream())
    base = torch.randn(2, offload.SMALLEST)
    views = [base.view(-1), base[0]]
    small, weight = torch.randn(3), torch.nn.Parameter(base.clone())
    pushed = [state.push_tensor(one) for one in (*views, small, weight)]
    assert pushed[2] is small
    assert pushed[3] is weight
    wanted = [one.clone() for one in views]
    state.start_offload()
    state.release_activation_forward_gpu_memory()
    base.zero_()
    state.start_reload()
    found = [state.pop_tensor(one) for one in pushed[:2]]
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_offload_moves_slices_and_tensors_of_any_order(te: Any) -> None:
    """What attention keeps: slices of one tensor, and results that do not lie by rows."""
    state = inside("_offload").OffloadableLayerState(torch.cuda.Stream(), smallest=1)
    mixed = torch.randn(6, 4, 2, 24)
    parts = [part.transpose(0, 1) for part in mixed.split((16, 4, 4), -1)]
    turned = torch.randn(4, 6, 8).transpose(0, 1)
    weight = torch.nn.Parameter(torch.randn(8, 16))
    wanted = [one.clone() for one in (*parts, turned, turned)]
    # The graph keeps copies of its own of what it returned.
    pushed = [state.push_tensor(one) for one in (*parts, turned, turned.detach())]
    assert state.push_tensor(weight.t()).data_ptr() == weight.data_ptr()
    with pytest.warns(UserWarning, match="non-contiguous"):
        assert isinstance(state.push_tensor(torch.randn(8, 9)[:, :1]), torch.Tensor)
    state.start_offload()
    # Each memory once.
    held = sum(one.numel() * one.element_size() for one in (mixed, turned))
    assert state.get_offloaded_total_size_mb() * 2**20 == held
    state.release_activation_forward_gpu_memory()
    for one in (mixed, turned):
        one.zero_()
    state.start_reload()
    found = [state.pop_tensor(one) for one in pushed]
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert [one.stride() for one in found[:3]] == [one.stride() for one in parts]


def test_layers_train_with_activations_on_the_host(
    te: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the synchronizer itself: the context moves nothing on a device without memory."""
    offload = inside("_offload")
    monkeypatch.setattr(offload, "SMALLEST", 1)
    moved: list[bool] = []
    original = offload.OffloadableLayerState.start_reload
    monkeypatch.setattr(
        offload.OffloadableLayerState,
        "start_reload",
        lambda state: (moved.append(bool(state._entries)), original(state)),
    )
    synchronizer = offload.DefaultOffloadSynchronizer(2, 1)
    context = inside("_offload_context").CpuOffloadContext(synchronizer)
    layers = [te.LayerNormLinear(8, 8) for _ in range(2)]
    x = torch.randn(4, 8)

    def gradients(moves: bool) -> list[torch.Tensor]:
        value = x.clone().requires_grad_()
        out = value
        for one in layers:
            one.zero_grad()
            if moves:
                with context:
                    out = one(out)
                out = context.synchronization_function(out)
            else:
                out = one(out)
        out.square().sum().backward()
        assert value.grad is not None
        return [value.grad, *(one.weight.grad.clone() for one in layers)]

    for _ in range(2):
        for one, other in zip(gradients(True), gradients(False), strict=True):
            assert torch.equal(one, other)
    assert moved == [True, True]
    assert inside("cpu_offload").is_cpu_offload_enabled() is False


def test_graphs_are_refused_without_a_device_for_them(te: Any) -> None:
    with pytest.raises(BridgeError, match="a device that captures graphs"):
        te.make_graphed_callables(te.Linear(8, 8), (torch.randn(2, 8),))
    assert not inside("graph").is_graph_capturing()


def test_order_of_a_pipeline_s_graphs(te: Any) -> None:
    order = inside("_graph_order").pipeline_order([1, 2, 1, 2, -2, -1, -2, -1], [2, 1], 3, 6)
    samples = {"forward": [], "backward": []}
    for _, step, index in order.steps():
        samples[step].append(index)
    assert samples == {"forward": [0, 1, 4, 2, 3, 5], "backward": [4, 1, 0, 5, 3, 2]}
    assert [order.layer_of(index) for index in range(6)] == [0, 1, 0, 1, 2, 2]
    with pytest.raises(AssertionError, match="Expected 6 args"):
        inside("_graph_order").pipeline_order([1, 2, 1, 2, -2, -1, -2, -1], [2, 1], 3, 5)


def test_float32_residual_is_rounded_once(te: Any) -> None:
    module = te.LayerNormLinear(8, 6, params_dtype=torch.bfloat16, return_layernorm_output=True)
    x = torch.randn(64, 8, requires_grad=True)
    out, normal = module(x)
    assert (out.dtype, normal.dtype) == (torch.bfloat16, torch.bfloat16)
    gamma, beta = module.layer_norm_weight, module.layer_norm_bias
    assert torch.equal(normal, layer(x, gamma.float(), beta.float()).bfloat16())
    assert not torch.equal(normal, layer(x.bfloat16(), gamma, beta))
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
