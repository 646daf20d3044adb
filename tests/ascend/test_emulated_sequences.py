"""Megatron's Mamba and gated-delta-net models train on an emulated NPU as on the CPU."""

from __future__ import annotations

import pytest
from libraries.test_sequence_models import WORKER, losses, train

from .conftest import Emulate


@pytest.mark.parametrize("kind", ["mamba", "delta"])
def test_the_losses_are_the_cpus(emulate: Emulate, kind: str) -> None:
    ended = emulate("-m", "accel_bridge.run", WORKER, kind, ACCEL_BRIDGE_LIBRARIES="all")
    assert ended.returncode == 0, ended.output
    assert "[EMULATED Ascend]" in ended.output
    assert losses(ended.output) == pytest.approx(losses(train(kind)), abs=2e-5)
