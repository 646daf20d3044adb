"""The gradient of Megatron's fused loss keeps the precision of the logits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from accel_bridge.patches.loss_gradient import PATCHES

# Not imported here: collecting the tests would import Megatron.
pytestmark = pytest.mark.megatron


def gradient(logits: torch.Tensor, target: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Of the sum of scaled losses, by the patched function, [s, b, v]."""
    from megatron.core.fusions import fused_cross_entropy as fused

    context: Any = SimpleNamespace(module=fused, original=fused.calculate_gradients)
    softmax = logits.detach().float().softmax(-1)
    hidden = torch.zeros_like(target, dtype=torch.bool)

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
            return values.float().logsumexp(-1)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = PATCHES[0].make(context)(softmax, grad, hidden, target.view(-1))
            return found

    (found,) = torch.autograd.grad((Loss.apply(logits) * scale).sum(), logits)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_gradient_is_rounded_to_the_dtype_of_the_logits_alone(dtype: torch.dtype) -> None:
    draws = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 2, 40, generator=draws).to(dtype).requires_grad_()
    target = torch.randint(40, (6, 2), generator=draws)
    scale = torch.rand(6, 2, generator=draws)
    found = gradient(logits, target, scale)
    exact = logits.detach().double().requires_grad_()
    losses = functional.cross_entropy(exact.flatten(0, 1), target.flatten(), reduction="none")
    (expected,) = torch.autograd.grad((losses.view(6, 2) * scale).sum(), exact)
    assert found.dtype == dtype
    limit = torch.finfo(dtype).eps
    error = ((found.double() - expected).norm() / expected.norm()).item()
    assert error < limit
    if dtype == torch.float32:  # what upstream does to it is found
        rounded = ((expected.bfloat16().double() - expected).norm() / expected.norm()).item()
        assert rounded > 1000 * limit
