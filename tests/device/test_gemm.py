"""GEMMs of float16 tensors on a device that is slow at them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from accel_bridge.backends.cpu import CpuBackend
from accel_bridge.device import DeviceRedirection, float16_matmuls_in

GEMMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "torch.matmul": lambda left, right: torch.matmul(left, right),
    "Tensor.matmul": lambda left, right: left.matmul(right),
    "@": lambda left, right: left @ right,
    "linear": lambda left, right: functional.linear(left, right.t()),
}


@pytest.fixture
def widened() -> DeviceRedirection:
    part = float16_matmuls_in(torch.float32)
    return DeviceRedirection(replace(CpuBackend().device(), parts=(part,)))


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(33, 4096).to(dtype), torch.randn(4096, 17).to(dtype)


@pytest.mark.parametrize("name", GEMMS)
def test_is_rounded_once(name: str, widened: DeviceRedirection) -> None:
    left, right = inputs(torch.float16)
    with widened:
        result = GEMMS[name](left, right)
    exact = (left.double() @ right.double()).to(torch.float16)
    # float32 sums of 4096 products move a result across a rounding boundary now and then.
    different = (result != exact).float().mean().item()
    assert result.dtype is torch.float16
    assert different < 0.01
