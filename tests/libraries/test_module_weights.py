"""Weights of Transformer Engine's modules: their gradients, how they are split, kept and saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch

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
