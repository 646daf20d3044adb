"""Scripts of Ascend users, checkpoints, sequence models and Triton kernels on emulated NPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from end_to_end import quick_start
from end_to_end.adaptor_2023 import COMMANDS, TOLERANCE, Reference, start_from
from end_to_end.launcher import UNCHANGED, Run, train, worst_difference
from libraries import test_sequence_models as sequences

from accel_bridge.apps.testing import FinishedRuns
from ascend.conftest import Emulate, emulated

#: Largest accepted difference of a loss in fp32.
FP32 = 1e-5


@pytest.mark.usefixtures("emulate")
def test_the_quick_start_of_mindspeed() -> None:
    """The other layout is tried on the CPU."""
    words = quick_start.arguments("TP1 PP2 with virtual stages")
    quick_start.check(emulated(*words, processes=2, iterations=3).succeeded())


@pytest.mark.usefixtures("emulate")
def test_a_checkpoint_goes_to_the_npu_and_back(
    tmp_path: Path, dense_checkpoint: Path, dense_reference: Run
) -> None:
    """CPU with Transformer Engine's names -> NPU, local names -> CPU: the same weights."""
    load = ["--load", str(dense_checkpoint), "--finetune", "--transformer-impl", "local"]
    through = emulated(*load, *UNCHANGED, "--save", str(tmp_path), iterations=1).succeeded()
    assert abs(through.losses[1] - dense_reference.losses[1]) <= FP32
    back = train("--load", str(tmp_path), "--finetune").succeeded()
    assert worst_difference(dense_reference, back) == 0.0


@pytest.mark.usefixtures("emulate")
def test_a_command_of_the_2023_adaptor(
    adaptor_checkpoint: Path, adaptor_reference: Reference
) -> None:
    """With a band; the CPU runs two of the others."""
    command, load = COMMANDS[1], start_from(adaptor_checkpoint)
    run = emulated(*command.arguments, *load, iterations=2).succeeded()
    expected = adaptor_reference(command.dtype, command.window)
    assert worst_difference(expected, run) <= TOLERANCE


@pytest.mark.usefixtures("emulate")
@pytest.mark.parametrize(
    "flags",
    [
        "--fine-grained-activation-offloading --offload-modules core_attn attn_proj "
        "--transformer-impl transformer_engine",
        "--swap-attention --transformer-impl local",
    ],
)
def test_activations_wait_on_the_host(flags: str) -> None:
    """Upstream moves tensors of devices called cuda alone, which the second run shows."""
    flags += " --min-offloaded-tensor-size 64 --num-layers 4"

    def moved(**environ: str) -> tuple[float, dict[int, float]]:
        env = {"NVTE_CPU_OFFLOAD_V1": "1", **environ}
        run = emulated(*flags.split(), env=env, iterations=2).succeeded()
        return float(run.output.split("\nTotal ")[1].split("\n")[0].split()[-1]), run.losses

    (here, losses), (there, expected) = moved(), moved(ACCEL_BRIDGE_PATCHES="-activation-offload")
    assert (here > 0, there) == (True, 0)
    assert losses == expected


@pytest.mark.parametrize("kind", ["mamba", "delta"])
def test_the_losses_of_sequence_models_are_the_cpus(
    emulate: Emulate, kind: str, warm: str, finished_runs: FinishedRuns
) -> None:
    words = ("-m", "accel_bridge.run", sequences.WORKER, kind)
    ended = emulate(*words, warm=True, ACCEL_BRIDGE_LIBRARIES="all")
    assert ended.returncode == 0, ended.output
    assert "[EMULATED Ascend]" in ended.output
    expected = sequences.losses(sequences.train(kind, warm, finished_runs))
    assert sequences.losses(ended.output) == pytest.approx(expected, abs=2e-5)


TRITON = """
import accel_bridge.auto
import torch, triton, triton.language as tl

@triton.jit
def doubled(x, y, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(y + place, tl.load(x + place) * 2)

x = torch.arange(4, device="cuda", dtype=torch.bfloat16)
y = torch.zeros_like(x)
doubled[(1,)](x, y, BLOCK=4)
print(y.device.type, y.cpu().tolist())
"""


def test_a_triton_kernel_is_interpreted(emulate: Emulate, tmp_path: Path) -> None:
    """NPUs have no compiler of Triton."""
    script = tmp_path / "script.py"
    script.write_text(TRITON)
    done = emulate(script, warm=True)
    assert "npu [0.0, 2.0, 4.0, 6.0]" in done.output, done.output[-2000:]
    assert "Triton kernels run in Triton's interpreter" in done.output
