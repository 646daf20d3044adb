"""Gradients that the backward pass itself adds to ``main_grad``: the losses stay the same.

The model's embeddings are tied; test_linear_loss.py has two stages, where they are apart.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from end_to_end.launcher import FUSED_HOST, Run, train, worst_difference

LAYOUTS = {
    "tied, overlapped": (
        2,
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
    ),
    "tied, split": (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
}


def fused(checkpoint: Path, processes: int, arguments: str, **environment: str) -> Run:
    """Five iterations on the backend of ``fused_host``."""
    environment |= {**FUSED_HOST, "ACCEL_BRIDGE_LOG": "debug"}
    load = ["--load", str(checkpoint), "--finetune", *arguments.split()]
    return train(*load, processes=processes, env=environment).succeeded()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_trains_as_without_fusion(
    layout: str, dense_checkpoint: Path, dense_reference: Run
) -> None:
    run = fused(dense_checkpoint, *LAYOUTS[layout])
    assert "gradient_accumulation_fusion .................... True" in run.output
    never_reached = re.findall("patches never reached: (.*)", run.output)
    assert never_reached
    assert "embedding-gradient" not in never_reached[-1]
    assert worst_difference(dense_reference, run) < 1e-5


@pytest.mark.conformance
def test_a_gradient_that_loses_tokens_is_noticed(
    dense_checkpoint: Path, dense_reference: Run
) -> None:
    run = fused(dense_checkpoint, 1, "", INJECTED_ERROR="lost")
    assert worst_difference(dense_reference, run) > 1e-4
