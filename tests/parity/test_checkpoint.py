"""Recordings that start from a checkpoint."""

from __future__ import annotations

from pathlib import Path

from accel_bridge.apps.comparison import Kind, compare
from accel_bridge.apps.testing import MODEL, Command, Record
from accel_bridge.recording import read


def test_a_checkpoint_gives_the_weights(
    record: Record, accel_bridge_command: Command, tmp_path: Path
) -> None:
    """Two layouts that load one checkpoint start from its weights, and not from drawn ones."""
    directory, out = str(tmp_path / "checkpoint"), tmp_path / "saved.rec"
    schedule = ("--train-iters", "3", "--ckpt-format", "torch_dist")
    done = accel_bridge_command(
        *("parity", "record", "--out", str(out), "--", *MODEL, *schedule),
        *("--save", directory, "--save-interval", "3"),
        environ={"ACCEL_BRIDGE_BACKEND": "cpu"},
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    load = (*schedule, "--load", directory, "--finetune")
    one = read(record(*load))
    two = read(record(*load, "--tensor-model-parallel-size", "2", processes=2))
    assert "from a checkpoint" in one.notes[0]
    assert compare(one, two).kind is Kind.AGREE
    assert one.identity["weights"] != read(out).identity["weights"]
    assert one.steps[0].loss < read(out).steps[0].loss
