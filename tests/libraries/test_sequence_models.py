"""Megatron's Mamba and gated-delta-net models train on the shims."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from accel_bridge.apps.testing import FinishedRuns

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


def train(kind: str, python: str, finished: FinishedRuns) -> str:
    """What the worker prints in a Python; it trains once in a session."""

    def make(directory: Path) -> None:
        ended = subprocess.run(
            [python, "-m", "accel_bridge.run", str(WORKER), kind],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
            env={**os.environ, **ENVIRONMENT},
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        (directory / "printed").write_text(ended.stdout)

    return (finished.directory(("sequence model", kind), make) / "printed").read_text()


@pytest.mark.parametrize(
    ("kinds", "layer"),
    [
        (("mamba", "mamba-plain"), "MambaMixer"),
        (("delta", "delta-native"), "GatedDeltaNet"),
    ],
)
def test_both_of_megatrons_roads_give_the_same_losses(
    kinds: tuple[str, str], layer: str, warm: str, finished_runs: FinishedRuns
) -> None:
    one, other = (train(kind, warm, finished_runs) for kind in kinds)
    assert layer in one
    assert losses(one)[-1] < losses(one)[0] - 0.1
    assert losses(one) == pytest.approx(losses(other), abs=2e-5)
