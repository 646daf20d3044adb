"""Transformer Engine's optimizers, lists of tensors and loss, against plain formulas."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from ops_support import alike
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("on_device")

SIZES = ((300, 7), (5,), (2048,))


@pytest.fixture(scope="module", autouse=True)
def optimizers(te: Any) -> Any:
    """``transformer_engine.pytorch.optimizers``."""
    return importlib.import_module("transformer_engine.pytorch.optimizers")


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    torch.manual_seed(1)
    return [torch.nn.Parameter(torch.randn(size).to(dtype)) for size in SIZES]


def train(optimizer: Any, params: list[torch.nn.Parameter], steps: int, name: str = "grad") -> None:
    """The same random gradients for every optimizer that has taken as many steps."""
    for _ in range(steps):
        torch.manual_seed(optimizer.param_groups[0].get("step", 0))
        for param in params:
            gradient = torch.randn(param.shape)
            setattr(param, name, gradient if name != "grad" else gradient.to(param.dtype))
        optimizer.step()


def reference(
    params: list[torch.nn.Parameter], steps: int, options: dict[str, Any]
) -> list[torch.Tensor]:
    """Adam in float64, written out."""
    mode = options.get("adam_w_mode", True)
    lr, decay, eps = options["lr"], options["weight_decay"], options["eps"]
    b1, b2 = options["betas"]
    weights = [param.detach().double() for param in params]
    m = [torch.zeros_like(weight) for weight in weights]
    v = [torch.zeros_like(weight) for weight in weights]
    for step in range(steps):
        torch.manual_seed(step)
        for i, weight in enumerate(weights):
            g = torch.randn(weight.shape).double()
            if not mode:
                g = g + decay * weight
            m[i] = b1 * m[i] + (1 - b1) * g
            v[i] = b2 * v[i] + (1 - b2) * g * g
            c1, c2 = 1 - b1 ** (step + 1), 1 - b2 ** (step + 1)
            if not options.get("bias_correction", True):
                c1 = c2 = 1.0
            update = (m[i] / c1) / ((v[i] / c2).sqrt() + eps)
            weights[i] = weight - lr * (update + (decay * weight if mode else 0.0))
    return weights


NUMBERS = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-3, "weight_decay": 0.1}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"adam_w_mode": False},
        {"bias_correction": False},
        {"capturable": True},
        {"capturable": True, "adam_w_mode": False, "bias_correction": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("injected", [{}, {"eps": 1e-2}, {"weight_decay": 0.09}], ids=str)
def test_adam(optimizers: Any, options: dict[str, Any], injected: dict[str, Any]) -> None:
    params = parameters()
    expected = reference(params, 5, {**NUMBERS, **options, **injected})
    optimizer = optimizers.FusedAdam(params, **NUMBERS, **options)
    train(optimizer, params, 5)
    assert alike(params, expected) is not bool(injected)
    assert int(optimizer.param_groups[0]["step"]) == 5


@pytest.mark.parametrize(
    ("moments", "main", "tolerance"),
    [
        (torch.float32, torch.float32, 0.0),
        (torch.bfloat16, torch.float32, 2e-3),
        (torch.float16, torch.float16, 2e-3),
    ],
)
@pytest.mark.parametrize("remainders", [False, True])
def test_main_weights_survive_a_checkpoint(
    optimizers: Any, moments: torch.dtype, main: torch.dtype, tolerance: float, remainders: bool
) -> None:
    options = {
        **NUMBERS,
        "master_weights": True,
        "master_weight_dtype": main,
        "exp_avg_dtype": moments,
        "exp_avg_sq_dtype": moments,
        "use_decoupled_grad": True,
        "store_param_remainders": remainders,
    }
    params = parameters(torch.bfloat16)
    # The remainder of a parameter that was never more than bfloat16 is 0.
    expected = reference(params, 6, NUMBERS)
    optimizer = optimizers.FusedAdam(params, **options)
    train(optimizer, params, 3, "decoupled_grad")
    saved = optimizer.state_dict()
    state = saved["state"][0]
    whole = remainders and main is torch.float32
    assert state["master_param"].dtype == (torch.int16 if whole else torch.float32)
    assert state["exp_avg"].dtype == torch.float32
    resumed = optimizers.FusedAdam(params, **options)
    resumed.load_state_dict(saved)
    train(resumed, params, 3, "decoupled_grad")
    for param, one in zip(params, expected, strict=True):
        assert torch.allclose(param.double(), one, rtol=2**-8, atol=1e-6 + tolerance)
        if not tolerance and not whole:
            kept = resumed.get_unscaled_state(param, "master_param")
            assert torch.allclose(kept.double(), one, rtol=1e-6, atol=1e-6)
            assert torch.equal(kept.bfloat16(), param.detach())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_sgd_is_torchs(optimizers: Any, options: dict[str, Any]) -> None:
    ours, theirs = parameters(), parameters()
    fused, plain = (
        optimizers.FusedSGD(ours, 0.1, **options),
        torch.optim.SGD(theirs, 0.1, **options),
    )
    for step in range(4):
        for one, other in zip(ours, theirs, strict=True):
            torch.manual_seed(step)
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        fused.step()
        plain.step()
    assert alike(ours, theirs)


@pytest.mark.parametrize("injected", [0.0, 1e-4])
def test_norm_is_exact_and_infinities_raise_the_flag(optimizers: Any, injected: float) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(1_000_001), torch.randn(3, dtype=torch.bfloat16)]
    flag = torch.zeros(1, dtype=torch.int32)
    norm, each = optimizers.multi_tensor_applier(
        optimizers.multi_tensor_l2norm, flag, [tensors], True
    )
    expected = torch.stack([tensor.double().norm() for tensor in tensors])
    assert torch.allclose(each.double(), expected * (1 + injected), rtol=1e-6) is not bool(injected)
    assert norm.shape == (1,)
    assert torch.allclose(norm.double(), expected.norm(), rtol=1e-6)
    assert flag.item() == 0
    tensors[0][7] = float("inf")
    optimizers.multi_tensor_applier(optimizers.multi_tensor_l2norm, flag, [tensors], False)
    assert flag.item() == 1


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16, torch.float16, None])
@pytest.mark.parametrize("factor", [1.0, 0.25])
@pytest.mark.parametrize("bad", [None, float("inf"), float("-inf"), float("nan")])
def test_scale(
    optimizers: Any,
    source: torch.dtype,
    target: torch.dtype | None,
    factor: float,
    bad: float | None,
) -> None:
    tensors = [torch.randn(100).to(source), torch.randn(3, 3).to(source)]
    if bad is not None:
        tensors[1][0, 0] = bad
    expected = [(tensor.float() * factor).to(target or source) for tensor in tensors]
    targets = tensors if target is None else [torch.empty_like(t, dtype=target) for t in tensors]
    flag = torch.zeros(1, dtype=torch.int32)
    if factor == 1.0:
        optimizers.multi_tensor_scale(2048, flag, [tensors, targets], factor)
    else:
        optimizers.multi_tensor_scale_tensor(2048, flag, [tensors, targets], torch.tensor([factor]))
    for one, other in zip(targets, expected, strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
    assert flag.item() == (bad is not None)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduce", [False, True])
@pytest.mark.parametrize("ignored", [-100, 3])
@pytest.mark.parametrize("injected", [0.0, 0.01])
def test_cross_entropy_is_torchs(
    smoothing: float, reduce: bool, ignored: int, injected: float
) -> None:
    from transformer_engine.pytorch import parallel_cross_entropy

    torch.manual_seed(2)
    logits = torch.randn(3, 5, 17, requires_grad=True)
    target = torch.randint(0, 17, (3, 5))
    target[0, :2] = ignored
    expected = functional.cross_entropy(
        logits.reshape(-1, 17),
        target.reshape(-1),
        ignore_index=ignored,
        label_smoothing=smoothing + injected,
        reduction="mean" if reduce else "none",
    )
    expected = expected if reduce else expected.view(3, 5)
    (wanted,) = torch.autograd.grad(expected.sum(), logits)
    loss = parallel_cross_entropy(logits, target, smoothing, reduce, None, ignored)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert torch.allclose(loss, expected, rtol=1e-5, atol=1e-6) is not bool(injected)
    assert torch.allclose(gradient, wanted, rtol=1e-5, atol=1e-6) is not bool(injected)
