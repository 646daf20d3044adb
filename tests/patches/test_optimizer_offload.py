"""Optimizer CPU offload where every tensor is a host tensor: the weights must move."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accel_bridge.backends.cpu import CpuBackend
from accel_bridge.device import DeviceRedirection
from accel_bridge.patches.optimizer import _make_offload

# Not imported here: collecting the tests would import Megatron.
pytestmark = pytest.mark.megatron
METHOD = "_get_sub_optimizer_param_groups"


def step(fraction: float, dtype: torch.dtype) -> tuple[torch.Tensor, Any]:
    """(how far each weight moved, the optimizer) after one step of Adam at rate 0.5."""
    from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer

    layer = torch.nn.Linear(4, 4, dtype=dtype).cuda()
    before = [weight.detach().clone() for weight in layer.parameters()]
    optimizer = HybridDeviceOptimizer(
        list(layer.parameters()),
        offload_fraction=fraction,
        cpu_optimizer_cls=torch.optim.Adam,
        gpu_optimizer_cls=torch.optim.Adam,
        param_update_in_fp32=dtype != torch.float32,
        lr=0.5,
    )
    layer(torch.ones(2, 4, dtype=dtype, device="cuda")).sum().backward()
    optimizer.step()
    moved = [(a - b).abs().min() for a, b in zip(layer.parameters(), before, strict=True)]
    return torch.stack(moved), optimizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_weights_move(monkeypatch: pytest.MonkeyPatch, fraction: float, dtype: torch.dtype) -> None:
    from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer

    redirection = DeviceRedirection(CpuBackend().device())
    redirection.apply()
    try:
        if fraction and dtype != torch.float32:
            # Upstream alone trains copies of the weights, of which nobody knows the side.
            moved, _ = step(fraction, dtype)
            assert moved.min() == 0
        context: Any = SimpleNamespace(original=getattr(HybridDeviceOptimizer, METHOD))
        monkeypatch.setattr(HybridDeviceOptimizer, METHOD, _make_offload(context))
        moved, optimizer = step(fraction, dtype)
        assert moved.min() > 0.4
        assert bool(optimizer.cpu_optimizers) == (fraction > 0)
        assert (optimizer.gpu_optimizer is None) == (fraction == 1.0)
    finally:
        redirection.undo()
