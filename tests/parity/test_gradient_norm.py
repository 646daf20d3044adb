"""The gradient norm that clipping uses, on the CPU."""

from __future__ import annotations

import pytest
import torch

from accel_bridge.patches.gradient_norm import ROW, sum_of_squares


@pytest.mark.parametrize("shape", [(1,), (ROW - 1,), (ROW,), (3, ROW + 5), (2000, 2048)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sum_of_squares_is_exact(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    exact = float(tensor.double().square().sum())
    assert float(sum_of_squares(tensor)) == pytest.approx(exact, rel=1e-6)


def test_torch_still_needs_this() -> None:
    """When torch's own norm is exact, the patch can go."""
    tensor = torch.randn(4_000_000, generator=torch.Generator().manual_seed(3))
    exact = float(tensor.double().norm())
    assert abs(float(torch.norm(tensor)) - exact) / exact > 1e-5
