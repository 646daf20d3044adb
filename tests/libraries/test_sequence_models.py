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


def losses(output: str) -> list[float]:
    """Of the four steps."""
    found = re.findall(r"^loss (\S+)$", output, re.MULTILINE)
    assert len(found) == 4, output
    return [float(one) for one in found]


def train(kind: str) -> str:
    """What the worker printed."""
    ended = subprocess.run(
        [sys.executable, "-m", "accel_bridge.run", str(WORKER), kind],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, **ENVIRONMENT},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


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
    assert layer in one
    assert losses(one)[-1] < losses(one)[0] - 0.1
    assert losses(one) == pytest.approx(losses(other), abs=2e-5)
