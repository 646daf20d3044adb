"""The same weights as GPT and as Hybrid: the same losses, and checkpoints go both ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_bridge.apps.testing import MOE
from end_to_end.checkpoints import Checkpoint, TrainOnce
from end_to_end.launcher import ROOT, UNCHANGED, Run, launch, train, worst_difference

SCRIPT = ROOT / "pretrain" / "pretrain_hybrid.py"
TOOL = Path(__file__).with_name("conversion") / "convert.py"
ROPE = ("--position-embedding-type", "rope")
#: What a model with dense layers and one with experts add, by the symbol of these layers.
KINDS = {"-": ROPE, "E": (*ROPE, *MOE, "--moe-grouped-gemm")}


def hybrid(kind: str, directory: Path, *arguments: str, **options: int) -> Run:
    """The same model from a checkpoint, as one of `HybridModel`."""
    # Of a GPT, --finetune alone would take the state of its optimizer.
    load = ["--load", str(directory), "--finetune", "--no-load-optim", *KINDS[kind]]
    load += ["--hybrid-layer-pattern", f"*{kind}" * 4, *arguments]
    return train(*load, script=SCRIPT, **options).succeeded()


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("-", "--tensor-model-parallel-size 2 --sequence-parallel"),
        ("-", "--pipeline-model-parallel-size 2 --hybrid-layer-pattern *-*-|*-*-"),
        ("E", "--expert-model-parallel-size 2"),
    ],
)
def test_hybrid_goes_on_from_a_gpt(
    kind: str, layout: str, train_once: TrainOnce, checkpoint: Checkpoint
) -> None:
    gpt = checkpoint(*KINDS[kind])
    reference = train_once("--load", str(gpt), "--finetune", *KINDS[kind])
    found = hybrid(kind, gpt, *layout.split(), processes=2)
    assert worst_difference(reference, found) <= 2e-6


def test_checkpoints_go_both_ways(
    tmp_path: Path, warm: str, train_once: TrainOnce, checkpoint: Checkpoint
) -> None:
    """Each way through the tool; attention in another layer's place is seen."""

    def convert(direction: str, source: Path, target: str, *order: str) -> Path:
        words = [direction, str(source), str(tmp_path / target), *order]
        launch([warm, "-m", "accel_bridge.run", str(TOOL), *words]).succeeded()
        return tmp_path / target

    gpt = checkpoint(*ROPE)
    reference = train_once("--load", str(gpt), "--finetune", *ROPE)
    there = convert("gpt-to-hybrid", gpt, "there")
    saved = [*UNCHANGED, "--save", str(tmp_path / "saved")]
    assert hybrid("-", there, *saved, iterations=1).losses[1] == reference.losses[1]
    back = convert("hybrid-to-gpt", tmp_path / "saved", "back")
    found = train("--load", str(back), "--finetune", *ROPE).succeeded()
    assert worst_difference(reference, found) <= 1e-6
    wrong = convert("hybrid-to-gpt", tmp_path / "saved", "wrong", "1", "0", "2", "3")
    found = train("--load", str(wrong), "--finetune", *ROPE, iterations=1).succeeded()
    assert abs(reference.losses[1] - found.losses[1]) > 1e-4
