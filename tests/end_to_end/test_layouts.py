"""What the parity suite (tests/parity/test_backends.py) does not say of layouts."""

from __future__ import annotations

from pathlib import Path

from end_to_end.launcher import MOE, ROOT, Run, train, worst_difference

#: Largest accepted difference of a loss in fp32: rounding of sums in another order.
FP32 = 1e-5


def test_expert_parallel_in_bf16(moe_checkpoint: Path) -> None:
    load = ["--load", str(moe_checkpoint), "--finetune", "--bf16", *MOE]
    run = train(*load, "--expert-model-parallel-size", "2", processes=2, iterations=5).succeeded()
    assert len(run.losses) == 5
    assert run.losses[5] < run.losses[1]


def test_a_planted_wrong_scale_is_seen(dense_checkpoint: Path, dense_reference: Run) -> None:
    plugin = {"ACCEL_BRIDGE_PLUGINS": "end_to_end.planted", "PYTHONPATH": str(ROOT / "tests")}
    run = train("--load", str(dense_checkpoint), "--finetune", env=plugin).succeeded()
    assert worst_difference(dense_reference, run) > FP32
