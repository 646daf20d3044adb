"""Which models get their loss without the logits of all tokens."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

# Not imported here: collecting the tests would import Megatron.
pytestmark = pytest.mark.megatron


def test_a_stand_in_with_a_loss_of_its_own_keeps_it() -> None:
    """Megatron's tests call the forward pass of a class with one."""
    from accel_bridge.patches.modules.output_loss import reason_against

    stand_in = SimpleNamespace(compute_language_model_loss=lambda labels, logits: labels)
    assert reason_against(stand_in, {}) == "the loss was replaced"
