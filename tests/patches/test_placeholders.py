"""Weights whose gradient is in main_grad and whose hook starts nothing get no placeholder."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accel_bridge.libraries.main_grad import placeholder
from accel_bridge.patches.placeholders import PATCHES


@pytest.mark.parametrize("overlap", [False, True])
def test_hook_that_starts_communication_needs_a_gradient(overlap: bool) -> None:
    (patch,) = PATCHES
    context: Any = SimpleNamespace(original=lambda self, param: (self, param))
    parallel: Any = SimpleNamespace(ddp_config=SimpleNamespace(overlap_grad_reduce=overlap))
    weight: Any = torch.nn.Parameter(torch.zeros(2, 3))
    weight.grad_added_to_main_grad = False
    hook: Any = patch.make(context)
    assert hook(parallel, weight) == (parallel, weight)
    assert (placeholder(weight, torch.zeros(2, 3)) is None) is not overlap
    assert weight.grad_added_to_main_grad
