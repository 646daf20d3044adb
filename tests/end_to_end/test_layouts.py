"""From one checkpoint, every layout trains as one process does."""

from __future__ import annotations

from pathlib import Path

import pytest

from end_to_end.launcher import MOE, ROOT, Run, train, worst_difference

#: Largest accepted difference of a loss in fp32: rounding of sums in another order.
FP32 = 1e-5
#: In bf16 a loss of 5 has steps of 0.03; sums over 512 tokens average most of that away.
BF16 = 2e-3

LAYOUTS = {
    "tp2": "--tensor-model-parallel-size 2",
    "tp2-sp": "--tensor-model-parallel-size 2 --sequence-parallel",
    "pp2": "--pipeline-model-parallel-size 2",
    "pp2-virtual": "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
    "dp2-distributed-optimizer": "--use-distributed-optimizer --overlap-grad-reduce "
    "--overlap-param-gather",
    "cp2": "--context-parallel-size 2",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fp32_equals_one_process(layout: str, dense_checkpoint: Path, dense_reference: Run) -> None:
    load = ["--load", str(dense_checkpoint), "--finetune"]
    run = train(*load, *LAYOUTS[layout].split(), processes=2).succeeded()
    assert worst_difference(dense_reference, run) <= FP32


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bf16_stays_near_one_process(
    layout: str, dense_checkpoint: Path, dense_reference_bf16: Run
) -> None:
    load = ["--load", str(dense_checkpoint), "--finetune", "--bf16"]
    run = train(*load, *LAYOUTS[layout].split(), processes=2).succeeded()
    assert worst_difference(dense_reference_bf16, run) <= BF16


def test_expert_parallel_equals_one_process(moe_checkpoint: Path, moe_reference: Run) -> None:
    load = ["--load", str(moe_checkpoint), "--finetune", *MOE]
    run = train(*load, "--expert-model-parallel-size", "2", processes=2).succeeded()
    assert worst_difference(moe_reference, run) <= FP32


def test_expert_parallel_in_bf16(moe_checkpoint: Path) -> None:
    load = ["--load", str(moe_checkpoint), "--finetune", "--bf16", *MOE]
    run = train(*load, "--expert-model-parallel-size", "2", processes=2, iterations=5).succeeded()
    assert len(run.losses) == 5
    assert run.losses[5] < run.losses[1]


def test_a_planted_wrong_scale_is_seen(dense_checkpoint: Path, dense_reference: Run) -> None:
    plugin = {"ACCEL_BRIDGE_PLUGINS": "end_to_end.planted", "PYTHONPATH": str(ROOT / "tests")}
    run = train("--load", str(dense_checkpoint), "--finetune", env=plugin).succeeded()
    assert worst_difference(dense_reference, run) > FP32


def test_local_and_te_spec_train_alike(dense_checkpoint: Path, dense_reference: Run) -> None:
    load = ["--load", str(dense_checkpoint), "--finetune", "--transformer-impl", "local"]
    run = train(*load).succeeded()
    assert worst_difference(dense_reference, run) <= FP32
