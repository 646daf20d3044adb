"""Loss without logits, and weight gradients that the backward pass itself adds to ``main_grad``.

Megatron trains as without. ``dense_checkpoint`` has tied embeddings; two stages have them apart.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from end_to_end.launcher import FUSED_HOST, Run, start, train, worst_difference

ON = {"ACCEL_BRIDGE_LINEAR_CROSS_ENTROPY": "on", "ACCEL_BRIDGE_LOG": "debug"}
#: name -> processes, arguments, whether the backward pass adds to ``main_grad`` itself.
LAYOUTS = {
    "one process": (1, "", False),
    "split with sequences, fused loss": (
        2,
        "--tensor-model-parallel-size 2 --sequence-parallel --cross-entropy-loss-fusion "
        "--use-distributed-optimizer --overlap-grad-reduce",
        True,
    ),
    "two stages": (2, "--pipeline-model-parallel-size 2", True),
}


def trained(checkpoint: Path, layout: str, **environment: str) -> Run:
    """Five iterations without logits."""
    processes, arguments, into_main_grad = LAYOUTS[layout]
    environment = {**(FUSED_HOST if into_main_grad else {}), **ON, **environment}
    load = ["--load", str(checkpoint), "--finetune", *arguments.split()]
    return train(*load, processes=processes, env=environment).succeeded()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_trains_as_with_logits(layout: str, dense_checkpoint: Path, dense_reference: Run) -> None:
    run = trained(dense_checkpoint, layout)
    unreached = re.findall("patches never reached: (.*)", run.output)[-1].split(", ")
    assert "linear-loss" not in unreached
    # On the first of two stages the tied embedding stands alone.
    assert "embedding-gradient" not in unreached or not LAYOUTS[layout][2]
    assert "cross-entropy" in unreached
    assert run.output.count("output layer and loss: 4,096 tokens at a time") == 1
    assert worst_difference(dense_reference, run) < 1e-5


@pytest.mark.conformance
def test_a_lost_weight_gradient_is_noticed(dense_checkpoint: Path, dense_reference: Run) -> None:
    run = trained(dense_checkpoint, "two stages", INJECTED_ERROR="output")
    assert worst_difference(dense_reference, run) > 1e-4


def fused(checkpoint: Path, processes: int, *arguments: str, **environment: str) -> Run:
    """Five iterations with logits on the backend of ``fused_host``."""
    environment |= {**FUSED_HOST, "ACCEL_BRIDGE_LOG": "debug"}
    load = ["--load", str(checkpoint), "--finetune", *arguments]
    return train(*load, processes=processes, env=environment).succeeded()


def test_trains_as_without_fusion(dense_checkpoint: Path, dense_reference: Run) -> None:
    overlapped = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
    run = fused(dense_checkpoint, 2, *overlapped.split())
    assert "gradient_accumulation_fusion .................... True" in run.output
    assert "embedding-gradient" not in re.findall("patches never reached: (.*)", run.output)[-1]
    assert worst_difference(dense_reference, run) < 1e-5


@pytest.mark.conformance
def test_a_gradient_that_loses_tokens_is_noticed(
    dense_checkpoint: Path, dense_reference: Run
) -> None:
    run = fused(dense_checkpoint, 1, INJECTED_ERROR="lost")
    assert worst_difference(dense_reference, run) > 1e-4


#: Cases of ``output_loss.py`` whose loss has no logits -> how far rounding may move it.
WITHOUT = dict.fromkeys(
    ("untied", "tied", "loss mask", "mup", "fused loss", "mtp", "without gradients", "rehearsal"),
    1e-5,
) | {"bfloat16": 3e-2}
#: Those in which somebody reads logits.
WITH = {"no labels", "hook", "hook everywhere", "replaced loss", "own loss", "processor"}


def test_who_reads_logits_gets_them() -> None:
    script = Path(__file__).with_name("output_loss.py")
    output = start(1, script, [], env=ON).succeeded().output
    found = {
        name: (fused == "1", float(error))
        for name, fused, error in re.findall(r"case (.*): (\d) (\S+)", output)
    }
    assert found.keys() == WITHOUT.keys() | WITH, output[-3000:]
    assert {name for name, (fused, _) in found.items() if fused} == WITHOUT.keys()
    wrong = {name: error for name, (_, error) in found.items() if error > WITHOUT.get(name, 0)}
    assert not wrong
