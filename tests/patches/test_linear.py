"""What autograd gets for a weight gradient that upstream has added to ``main_grad``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from upstream_linear import linear


def weights(tied: bool) -> torch.nn.Parameter:
    """A weight with what Megatron's gradient buffers hang on it."""
    weight: Any = torch.nn.Parameter(torch.randn(6, 4, generator=torch.Generator().manual_seed(1)))
    weight.main_grad = torch.ones(6, 4)
    weight.grad_added_to_main_grad = False
    weight.zero_out_wgrad = tied
    return weight


@pytest.mark.parametrize("tied", [False, True])
def test_the_weight_gradient_goes_into_main_grad(tied: bool) -> None:
    x = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    bias = torch.nn.Parameter(torch.randn(6, generator=torch.Generator().manual_seed(2)))
    weight: Any = weights(tied)
    output = linear(x, weight, bias)
    output.square().sum().backward()
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (x, weight, bias)]
    expected = torch.nn.functional.linear(*leaves)
    expected.square().sum().backward()
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(x.grad, leaves[0].grad)
    torch.testing.assert_close(bias.grad, leaves[2].grad)
    assert leaves[1].grad is not None
    torch.testing.assert_close(weight.main_grad, 1 + leaves[1].grad)
    assert weight.grad_added_to_main_grad is True
    assert weight.grad.shape == weight.shape  # what Megatron's hook sees
    if tied:
        assert not weight.grad.any()  # it is added to the embedding's gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_autograd_gets_for_it_takes_no_memory(dtype: torch.dtype) -> None:
    weight: Any = torch.nn.Parameter(torch.ones(6, 4, dtype=dtype))
    weight.main_grad, weight.grad_added_to_main_grad = torch.ones(8, 4)[2:], False
    weight.zero_out_wgrad = False
    linear(torch.ones(3, 2, 4, dtype=dtype), weight).sum().backward()
    assert (weight.grad.dtype, weight.grad.stride()) == (dtype, weight.stride())
    assert weight.grad.data_ptr() == weight.main_grad.data_ptr()
    assert torch.equal(weight.main_grad, torch.full((6, 4), 7.0))


def test_without_fusion_autograd_gets_the_gradient() -> None:
    x = torch.randn(3, 2, 4, requires_grad=True)
    weight = torch.nn.Parameter(torch.randn(6, 4))
    linear(x, weight, fusion=False).sum().backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, x.detach().sum((0, 1)).expand(6, 4))
