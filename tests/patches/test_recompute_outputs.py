"""A recomputed function may hand out a parameter."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accel_bridge.patches.recompute_outputs import PATCHES
from accel_bridge.patching import Argument

# Not imported here: collecting the tests would import Megatron.
pytestmark = pytest.mark.megatron


@pytest.fixture
def checkpoint(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Megatron's, whose random states are a device's; nothing here draws numbers."""
    from megatron.core.tensor_parallel import random

    monkeypatch.setattr(random, "_get_all_rng_states", tuple)
    monkeypatch.setattr(random, "_set_all_rng_states", lambda *_: None)
    monkeypatch.setattr(random, "_fork_rng", nullcontext)
    return random.checkpoint


def patched(upstream: Any) -> Any:
    context: Any = SimpleNamespace(original=upstream, argument=lambda name: Argument(name, 0, None))
    return PATCHES[0].make(context)


def test_a_parameter_among_the_results_keeps_no_history(checkpoint: Any) -> None:
    bias = torch.nn.Parameter(torch.ones(3))
    value = torch.ones(3, requires_grad=True)

    def run(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return inputs * 2, bias, None

    result, given, nothing = patched(checkpoint)(run, False, value)
    assert bias.is_leaf
    assert nothing is None
    (result * 3 + given * 5).sum().backward()
    assert value.grad is not None
    assert bias.grad is not None
    assert value.grad.tolist() == [6.0] * 3
    assert bias.grad.tolist() == [5.0] * 3
    assert torch.equal(patched(checkpoint)(lambda one: one * 2, False, value), value * 2)
    # What is fixed: the backward pass would now run itself again, without an end.
    checkpoint(run, False, value)
    assert not bias.is_leaf
