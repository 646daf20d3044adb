"""Recordings that start from a checkpoint."""

from __future__ import annotations

from pathlib import Path

from accel_bridge.apps.comparison import Kind, compare
from accel_bridge.apps.testing import Record
from accel_bridge.recording import read


def test_a_checkpoint_gives_the_weights(record: Record, tmp_path: Path) -> None:
    """Two layouts that load one checkpoint start from its weights, and not from drawn ones."""
    directory = str(tmp_path / "checkpoint")
    schedule = ("--train-iters", "3", "--ckpt-format", "torch_dist")
    saved = read(record(*schedule, "--save", directory, "--save-interval", "3"))
    load = (*schedule, "--load", directory, "--finetune")
    one = read(record(*load))
    two = read(record(*load, "--tensor-model-parallel-size", "2", processes=2))
    assert "from a checkpoint" in one.notes[0]
    assert compare(one, two).kind is Kind.AGREE
    assert one.identity["weights"] != saved.identity["weights"]
    assert one.steps[0].loss < saved.steps[0].loss
