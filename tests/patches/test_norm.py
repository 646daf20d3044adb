"""Norms of Megatron's modules beside a residual stream of another precision."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch

from accel_bridge.kernels import CONTRACTS, reference_kernel
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
    kernels = {name: reference_kernel(name, "a test") for name in ("layer_norm", "rms_norm")}
    result = normalize(x, weight, bias, config=config, eps=1e-5, kernels=kernels)
    rest = () if bias is None else (bias.float(),)
    name = "rms_norm" if bias is None else "layer_norm"
    exact = CONTRACTS[name].reference(x, weight.float(), *rest, eps=1e-5, zero_centered_gamma=False)
    assert torch.equal(result, exact.to(weights))
    result.float().sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == weights
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
