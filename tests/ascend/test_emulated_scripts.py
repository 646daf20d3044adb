"""Scripts of Ascend users, and checkpoints, on emulated NPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from end_to_end.adaptor_2023 import COMMANDS, TOLERANCE, Command, start_from
from end_to_end.launcher import Run, train, worst_difference

from ascend.emulated import emulated

#: Largest accepted difference of a loss in fp32.
FP32 = 1e-5

#: The arguments of MindSpeed's quick start that decide how it is run; sizes are the test model's.
#: Source: MindSpeed, README and docs, "pretrain_gpt" example (master of July 2026).
QUICK_START = """
--transformer-impl local --no-masked-softmax-fusion --distributed-backend nccl --fp16
--attention-softmax-in-fp32 --no-gradient-accumulation-fusion --initial-loss-scale 65536
""".split()


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
def test_the_eight_commands_of_the_2023_adaptor(
    command: Command,
    adaptor_checkpoint: Path,
    adaptor_reference: Callable[[str, tuple[str, ...]], Run],
) -> None:
    load = start_from(adaptor_checkpoint)
    run = emulated(*command.arguments, *load, iterations=2).succeeded()
    expected = adaptor_reference(command.dtype, command.window)
    assert worst_difference(expected, run) <= TOLERANCE


@pytest.mark.usefixtures("emulate")
def test_a_model_that_is_initialized_on_the_host_trains_on_the_npu() -> None:
    """Upstream leaves it on the host, where the optimizer for half precision refuses it."""
    run = emulated("--use-cpu-initialization", "--bf16", iterations=3).succeeded()
    expected = train("--use-cpu-initialization", "--bf16", iterations=3).succeeded()
    assert worst_difference(expected, run) <= 2e-3
