"""Weights of Transformer Engine's modules: their gradients, how they are split, kept and saved."""

from __future__ import annotations

import os
import pickle
from typing import Any

import pytest
import torch
from te_support import inside, recipes

from accel_bridge import BridgeError
from accel_bridge.kernels import WEIGHT_GRADIENT


def with_main_grad(weight: Any, start: float = 1.0) -> torch.Tensor:
    weight.main_grad = torch.full(weight.shape, start)
    weight.grad_added_to_main_grad = False
    sums: torch.Tensor = weight.main_grad
    return sums


@pytest.mark.slow
def test_weight_gradient_goes_to_main_grad(te: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = te.Linear(8, 6, fuse_wgrad_accumulation=True)
    x = torch.randn(5, 8)

    def found() -> float:
        sums = with_main_grad(module.weight)
        module.weight.grad = None
        module(x).sum().backward()
        return float((sums - 1 - x.sum(0)).abs().max())

    assert found() < 1e-5
    assert module.weight.grad_added_to_main_grad
    # What autograd got takes no memory.
    assert module.weight.grad.untyped_storage().data_ptr() == (
        module.weight.main_grad.untyped_storage().data_ptr()
    )
    functions = inside("module._main_grad")
    original = functions.kernel
    monkeypatch.setattr(
        functions,
        "kernel",
        lambda contract: (
            (lambda *args: None) if contract is WEIGHT_GRADIENT else original(contract)
        ),
    )
    assert found() > 1e-2  # planted: the kernel adds nothing


def test_placeholders_that_stay_are_not_added_to_main_grad(te: Any) -> None:
    module = te.Linear(8, 6, fuse_wgrad_accumulation=True)
    sums = with_main_grad(module.weight, 0.0)
    x = torch.randn(5, 8)
    for _ in range(3):
        module(x).sum().backward()
    assert torch.allclose(sums, 3 * x.sum(0).expand(6, 8), atol=1e-5)


def test_tied_weight_gets_zeros(te: Any) -> None:
    module = te.Linear(8, 6, fuse_wgrad_accumulation=True)
    with_main_grad(module.weight)
    module.weight.zero_out_wgrad = True
    module(torch.randn(5, 8)).sum().backward()
    assert not module.weight.grad.any()


def test_first_microbatch_replaces_once(te: Any) -> None:
    """Also where a module runs twice in it."""
    module = te.Linear(8, 8, bias=False, fuse_wgrad_accumulation=True)
    sums = with_main_grad(module.weight, 7.0)
    x = torch.randn(5, 8)
    module(module(x, is_first_microbatch=True), is_first_microbatch=False).sum().backward()
    plain = te.Linear(8, 8, bias=False)
    plain.weight.data.copy_(module.weight)
    plain(plain(x)).sum().backward()
    assert torch.allclose(sums, plain.weight.grad, atol=1e-5)
    module(x, is_first_microbatch=False).sum().backward()
    assert torch.allclose(sums - plain.weight.grad, x.sum(0).expand(8, 8), atol=1e-5)
    module.weight.overwrite_main_grad = True
    module(x).sum().backward()
    assert torch.allclose(sums, x.sum(0).expand(8, 8), atol=1e-5)


@pytest.mark.parametrize("name", ["Linear", "LayerNormLinear", "LayerNormMLP"])
def test_delayed_weight_gradients(te: Any, name: str) -> None:
    now = getattr(te, name)(8, 8)
    later = getattr(te, name)(8, 8, delay_wgrad_compute=True)
    later.load_state_dict(now.state_dict())
    x = torch.randn(5, 8)
    called: list[int] = []
    later.register_wgrad_accumulation_and_reduce_hooks(lambda: called.append(1))
    for module in (now, later):
        module(x).square().sum().backward()
    weights = list(later.weight_names)
    assert all(getattr(later, one).grad is None for one in weights)
    assert all(getattr(later, one).skip_backward_post_hook for one in weights)
    later.backward_dw()
    assert called == [1]
    for one, other in zip(now.parameters(), later.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-5)
    with pytest.raises(RuntimeError, match="Pop empty queue"):
        later.backward_dw()


def test_parameters_say_how_they_are_split(te: Any) -> None:
    module = te.Linear(8, 6, tp_size=2, parallel_mode="row", sequence_parallel=True)
    assert module.weight.shape == (6, 4)
    assert (module.weight.tensor_model_parallel, module.weight.partition_dim) == (True, 1)
    assert module.bias.sequence_parallel
    module = te.LayerNormLinear(8, 6, tp_size=2, parallel_mode="column", sequence_parallel=True)
    assert (module.weight.shape, module.bias.shape) == ((3, 8), (3,))
    assert (module.bias.partition_dim, module.layer_norm_weight.sequence_parallel) == (0, True)
    with pytest.raises(AssertionError, match="TP group not initialized"):
        module(torch.randn(2, 8))


def test_meta_device_is_initialised_later(te: Any) -> None:
    module = te.LayerNormLinear(8, 6, device="meta", init_method=torch.nn.init.ones_)
    assert module.weight.is_meta
    module.reset_parameters()
    assert module.weight.eq(1).all()
    assert module.weight.partition_dim == 0


def test_fp8_weights_are_kept_between_microbatches(te: Any) -> None:
    module = te.Linear(32, 32)
    x = torch.randn(16, 32)
    recipe = recipes()["tensorwise"]

    def call(first: bool | None) -> torch.Tensor:
        with te.autocast(enabled=True, recipe=recipe):
            out: torch.Tensor = module(x, is_first_microbatch=first)
        return out

    before = call(True)
    module.weight.data.mul_(2)
    assert torch.equal(call(False), before)
    assert not torch.equal(call(True), before)


def test_extra_state_survives_and_runs_no_code(te: Any) -> None:
    module = te.Linear(32, 32)
    assert module.get_extra_state().numel() == 0
    for _ in range(2):
        with te.autocast(enabled=True, recipe=recipes()["delayed"]):
            module(torch.randn(16, 32)).sum().backward()
    other = te.Linear(32, 32)
    other.load_state_dict(module.state_dict())
    mine, theirs = module.fp8_meta["scaling_fwd"], other.fp8_meta["scaling_fwd"]
    assert torch.equal(mine.scale, theirs.scale)
    assert not theirs.scale.eq(1).all()
    assert other.fp8_meta["recipe"] == recipes()["delayed"]

    class Planted:
        def __reduce__(self) -> Any:
            return os.system, ("exit 1",)

    evil = torch.frombuffer(bytearray(pickle.dumps({"recipe": Planted()})), dtype=torch.uint8)
    with pytest.raises(BridgeError, match=r"names (posix|nt)\.system"):
        other.set_extra_state(evil)


def test_primary_fp8_weights(te: Any) -> None:
    recipe = recipes()["tensorwise"]
    with te.fp8_model_init(enabled=True, recipe=recipe, preserve_high_precision_init_val=True):
        module = te.Linear(32, 32)
    exact = module.weight.get_high_precision_init_val()
    rounded = module.weight.dequantize()
    assert 0 < (exact - rounded).norm() / exact.norm() < 0.05
    module.weight.clear_high_precision_init_val()
    assert module.weight.get_high_precision_init_val() is None
    with te.autocast(enabled=True, recipe=recipe):
        out = module(torch.randn(16, 32))
    out.sum().backward()
    assert module.weight.grad.shape == (32, 32)
