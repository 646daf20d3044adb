"""Norms of Megatron's modules beside a residual stream of another precision."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch

from accel_bridge.kernels import LAYER_NORM, RMS_NORM, Kernels, reference_kernel
from accel_bridge.patches.modules.norm import normalize


@pytest.mark.parametrize("normalization", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float16, torch.float32])
def test_a_float32_residual_is_normalised_exactly_and_rounded_once(
    normalization: str, weights: torch.dtype
) -> None:
    x = torch.randn(5, 2, 64, requires_grad=True)
    weight = torch.randn(64).to(weights).requires_grad_()
    bias = torch.randn(64).to(weights) if normalization == "LayerNorm" else None
    config = Namespace(normalization=normalization, layernorm_zero_centered_gamma=False)
    kernels = Kernels(*(reference_kernel(norm, "a test") for norm in (LAYER_NORM, RMS_NORM)))
    result = normalize(x, weight, bias, config=config, eps=1e-5, kernels=kernels)
    if bias is None:
        exact = RMS_NORM.reference(x, weight.float(), eps=1e-5)
    else:
        exact = LAYER_NORM.reference(x, weight.float(), bias.float(), eps=1e-5)
    assert torch.equal(result, exact.to(weights))
    result.float().sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == weights
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
