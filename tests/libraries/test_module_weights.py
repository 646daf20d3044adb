"""Weights of Transformer Engine's modules: their gradients, how they are split, kept and saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accel_bridge.libraries.main_grad import needs_no_placeholder

pytestmark = pytest.mark.usefixtures("on_device")


def with_main_grad(weight: Any, start: float = 1.0) -> torch.Tensor:
    weight.main_grad = torch.full(weight.shape, start)
    weight.grad_added_to_main_grad = False
    sums: torch.Tensor = weight.main_grad
    return sums


@pytest.mark.slow
def test_weight_gradient_goes_to_main_grad(te: Any) -> None:
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


def test_placeholders_that_stay_are_not_added_to_main_grad(te: Any) -> None:
    module = te.Linear(8, 6, fuse_wgrad_accumulation=True)
    sums = with_main_grad(module.weight, 0.0)
    x = torch.randn(5, 8)
    for _ in range(3):
        module(x).sum().backward()
    assert torch.allclose(sums, 3 * x.sum(0).expand(6, 8), atol=1e-5)


def test_no_placeholder_where_nobody_waits_for_one(te: Any) -> None:
    module = te.Linear(8, 6, fuse_wgrad_accumulation=True)
    sums = with_main_grad(module.weight, 0.0)
    needs_no_placeholder(module.weight)
    x = torch.randn(5, 8)
    module(x).sum().backward()
    assert module.weight.grad is None
    assert module.weight.grad_added_to_main_grad
    seen: list[torch.Tensor] = []
    module.weight.register_hook(seen.append)
    module(x).sum().backward()
    assert len(seen) == 1
    assert torch.allclose(sums, 2 * x.sum(0).expand(6, 8), atol=1e-5)


def test_tied_weight_gets_zeros(te: Any) -> None:
    module = te.Linear(8, 6, fuse_wgrad_accumulation=True)
    with_main_grad(module.weight)
    module.weight.zero_out_wgrad = True
    module(torch.randn(5, 8)).sum().backward()
    assert not module.weight.grad.any()


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
    weights = [one for one, of in later.named_parameters() if of.dim() == 2]
    assert all(later.get_parameter(one).grad is None for one in weights)
    assert all(later.get_parameter(one).skip_backward_post_hook for one in weights)
    later.backward_dw()
    assert called == [1]
    for one, other in zip(now.parameters(), later.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-5)
    with pytest.raises(RuntimeError, match="Pop empty queue"):
        later.backward_dw()


def test_fp8_weights_are_kept_between_microbatches(te: Any, recipes: Any) -> None:
    module = te.Linear(32, 32)
    x = torch.randn(16, 32)
    recipe = recipes["tensorwise"]

    def call(first: bool | None) -> torch.Tensor:
        with te.autocast(enabled=True, recipe=recipe):
            out: torch.Tensor = module(x, is_first_microbatch=first)
        return out

    before = call(True)
    module.weight.data.mul_(2)
    assert torch.equal(call(False), before)
    assert not torch.equal(call(True), before)


def test_primary_fp8_weights(te: Any, recipes: Any) -> None:
    recipe = recipes["tensorwise"]
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
