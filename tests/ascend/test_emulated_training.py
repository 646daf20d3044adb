"""Megatron on emulated NPUs trains as on the CPU, from the same checkpoint, in every layout."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from end_to_end.adaptor_2023 import COMMANDS, TOLERANCE, Command, start_from
from end_to_end.adaptor_2023 import reference as adaptor_reference
from end_to_end.launcher import MOE, ROOT, Run, train, worst_difference

#: Largest accepted difference of a loss in fp32.
FP32 = 1e-5

LAYOUTS = {
    "tp2": "--tensor-model-parallel-size 2",
    "tp2-sp": "--tensor-model-parallel-size 2 --sequence-parallel",
    "pp2-virtual": "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
    "dp2-distributed-optimizer": "--use-distributed-optimizer --overlap-grad-reduce "
    "--overlap-param-gather",
    "cp2": "--context-parallel-size 2",
}

#: The arguments of MindSpeed's quick start that decide how it is run; sizes are the test model's.
#: Source: MindSpeed, README and docs, "pretrain_gpt" example (master of July 2026).
QUICK_START = """
--transformer-impl local --no-masked-softmax-fusion --distributed-backend nccl --fp16
--attention-softmax-in-fp32 --no-gradient-accumulation-fusion --initial-loss-scale 65536
""".split()


def emulated(*arguments: str, processes: int = 1, **options: object) -> Run:
    """``train`` on as many emulated NPUs as there are processes."""
    command = [sys.executable, "-m", "accel_bridge", "emulate-ascend"]
    before = [*command, "--devices", str(processes), "--"]
    return train(*arguments, processes=processes, before=before, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def npu_reference(dense_checkpoint: Path) -> Run:
    """Ten iterations of one emulated NPU in fp32 from the dense checkpoint."""
    return emulated("--load", str(dense_checkpoint), "--finetune").succeeded()


@pytest.mark.usefixtures("emulate")
class TestFp32:
    """Ten iterations from one checkpoint."""

    def test_one_npu_equals_the_cpu(self, npu_reference: Run, dense_reference: Run) -> None:
        assert worst_difference(dense_reference, npu_reference) <= FP32
        assert "EMULATED" in npu_reference.output
        reached = re.search(r"patches reached: (\d+) of", npu_reference.output)
        assert reached is not None
        assert int(reached[1]) >= 5

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_a_layout_equals_the_cpu(
        self,
        layout: str,
        dense_checkpoint: Path,
        dense_reference: Run,
    ) -> None:
        load = ["--load", str(dense_checkpoint), "--finetune"]
        run = emulated(*load, *LAYOUTS[layout].split(), processes=2).succeeded()
        assert worst_difference(dense_reference, run) <= FP32

    def test_experts_on_two_npus_equal_the_cpu(
        self,
        moe_checkpoint: Path,
        moe_reference: Run,
    ) -> None:
        load = ["--load", str(moe_checkpoint), "--finetune", *MOE]
        run = emulated(*load, "--expert-model-parallel-size", "2", processes=2).succeeded()
        assert worst_difference(moe_reference, run) <= FP32

    def test_eight_npus_equal_the_cpu(
        self,
        dense_checkpoint: Path,
        dense_reference: Run,
    ) -> None:
        layout = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
        load = ["--load", str(dense_checkpoint), "--finetune", "--use-distributed-optimizer"]
        run = emulated(*load, *layout.split(), processes=8, iterations=10).succeeded()
        assert worst_difference(dense_reference, run) <= FP32

    def test_a_planted_wrong_scale_is_seen(
        self,
        dense_checkpoint: Path,
        dense_reference: Run,
    ) -> None:
        plugin = {"ACCEL_BRIDGE_PLUGINS": "end_to_end.planted", "PYTHONPATH": str(ROOT / "tests")}
        run = emulated("--load", str(dense_checkpoint), "--finetune", env=plugin).succeeded()
        assert worst_difference(dense_reference, run) > FP32


@pytest.mark.usefixtures("emulate")
@pytest.mark.parametrize(
    "layout",
    [
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 1",
        "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 2 "
        "--num-layers-per-virtual-pipeline-stage 1",
    ],
)
def test_the_quick_start_of_mindspeed_trains(layout: str) -> None:
    run = emulated(*QUICK_START, *layout.split(), processes=2).succeeded()
    assert len(run.losses) == 10
    assert run.losses[10] < run.losses[1]


@pytest.mark.usefixtures("emulate")
def test_a_checkpoint_goes_to_the_npu_and_back(
    tmp_path: Path,
    dense_checkpoint: Path,
) -> None:
    """CPU with Transformer Engine's names -> NPU, local names -> CPU: the losses go on."""
    names = ["--transformer-impl", "local"]
    load = ["--load", str(dense_checkpoint), "--finetune"]
    save = ["--save", str(tmp_path), "--save-interval", "3"]
    emulated(*load, *names, *save, iterations=3).succeeded()
    through_npu = train("--load", str(tmp_path), "--finetune", iterations=3).succeeded()

    straight = tmp_path / "cpu"
    train(*load, "--save", str(straight), "--save-interval", "3", iterations=3).succeeded()
    through_cpu = train("--load", str(straight), "--finetune", iterations=3).succeeded()
    assert worst_difference(through_cpu, through_npu) <= FP32


@pytest.mark.usefixtures("emulate")
@pytest.mark.parametrize("command", COMMANDS)
def test_the_eight_commands_of_the_2023_adaptor(command: Command, adaptor_checkpoint: Path) -> None:
    load = start_from(adaptor_checkpoint)
    run = emulated(*command.arguments, *load, iterations=2).succeeded()
    expected = adaptor_reference(command.dtype, command.window, adaptor_checkpoint)
    assert worst_difference(expected, run) <= TOLERANCE
