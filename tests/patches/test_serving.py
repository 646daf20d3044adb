"""vLLM beside a trainer: it starts without a sleep mode, and its weights can be updated."""

from __future__ import annotations

import inspect
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accel_bridge.patches.serving import PATCHES


@pytest.mark.parametrize("available", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_a_sleep_mode_is_asked_for_where_there_is_one(
    asked: bool, available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = SimpleNamespace(device_type="cpu", is_sleep_mode_available=lambda: available)
    module = SimpleNamespace(current_platform=platform)
    monkeypatch.setitem(sys.modules, "vllm.platforms", module)
    said: list[str] = []
    context: Any = SimpleNamespace(
        original=lambda self: self.enable_sleep_mode, host=SimpleNamespace(say_once=said.append)
    )
    given = SimpleNamespace(enable_sleep_mode=asked)
    make: Any = PATCHES[0].make
    assert make(context)(given) is (asked and available)
    assert bool(said) is (asked and not available)


def test_a_layer_multiplies_by_the_weight_that_a_trainer_has_updated() -> None:
    make: Any = PATCHES[1].make
    new = make(SimpleNamespace())
    # It replaces a function whose parameters must be pinned.
    assert PATCHES[1].parameters == tuple(inspect.signature(new).parameters)
    layer: Any = torch.nn.Linear(2, 2)
    new(layer, remove_weight=True)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(2))
    x = torch.randn(3, 2)
    assert torch.equal(layer.cpu_linear(x, layer.weight, None), x)
