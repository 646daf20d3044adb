"""Megatron's Mamba and gated-delta-net models train on an emulated NPU as on the CPU."""

from __future__ import annotations

import pytest
from libraries.test_sequence_models import WORKER, losses, train

from accel_bridge.apps.testing import FinishedRuns

from .conftest import Emulate


@pytest.mark.parametrize("kind", ["mamba", "delta"])
def test_the_losses_are_the_cpus(
    emulate: Emulate, kind: str, warm: str, finished_runs: FinishedRuns
) -> None:
    words = ("-m", "accel_bridge.run", WORKER, kind)
    ended = emulate(*words, warm=True, ACCEL_BRIDGE_LIBRARIES="all")
    assert ended.returncode == 0, ended.output
    assert "[EMULATED Ascend]" in ended.output
    expected = losses(train(kind, warm, finished_runs))
    assert losses(ended.output) == pytest.approx(expected, abs=2e-5)
