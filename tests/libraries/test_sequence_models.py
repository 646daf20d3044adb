"""Megatron's Mamba and gated-delta-net models train on the stand-ins."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

#: Megatron's Mamba needs it, and its gated delta net does not.
pytest.importorskip("einops")

#: The last one: Megatron's condition for its own chunks.
ENVIRONMENT = {
    "ACCEL_BRIDGE_LIBRARIES": "all",
    "ACCEL_BRIDGE_BACKEND": "cpu",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
}
WORKER = Path(__file__).with_name("sequence_models.py")


def train(kind: str) -> tuple[list[float], str]:
    """The losses, and all that was printed."""
    ended = subprocess.run(
        [sys.executable, "-m", "accel_bridge.run", str(WORKER), kind],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, **ENVIRONMENT},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    losses = [float(found) for found in re.findall(r"^loss (\S+)$", ended.stdout, re.MULTILINE)]
    assert len(losses) == 4
    return losses, ended.stdout


@pytest.mark.megatron
@pytest.mark.parametrize(
    ("kinds", "layer"),
    [
        (("mamba", "mamba-plain"), "MambaMixer"),
        (("delta", "delta-native"), "GatedDeltaNet"),
    ],
)
def test_both_of_megatrons_roads_give_the_same_losses(kinds: tuple[str, str], layer: str) -> None:
    one, other = (train(kind) for kind in kinds)
    assert layer in one[1]
    assert one[0][-1] < one[0][0] - 0.1
    assert one[0] == pytest.approx(other[0], abs=2e-5)
