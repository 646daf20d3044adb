"""The rules and the judge of the recipe runner."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import recipe_rules
from recipe_verdicts import Phase, judge


def test_sizes_shrink_and_features_stay() -> None:
    recipe = {
        "--num-layers": 32,
        "--hidden-size": 4096,
        "--pipeline-model-parallel-size": 4,
        "--num-layers-per-virtual-pipeline-stage": 1,
        "--train-iters": 50,
        "--lr-decay-iters": 320000,
        "--swiglu": True,
        "--wandb-project": "upstream",
        "--budget-list": "[1.0 0.5]",
    }
    small, world = recipe_rules.scale(recipe, resumes=True)
    assert world == 8
    line = recipe_rules.words(small)
    assert "--swiglu" in line
    assert "--wandb-project" not in line
    assert line[line.index("--budget-list") :][:3] == ["--budget-list", "1.0", "0.5"]
    assert (small["--num-layers"], small["--hidden-size"]) == (8, 128)
    assert (small["--train-iters"], small["--lr-decay-iters"]) == (6, 6)
    assert recipe["--num-layers"] == 32
    # A pattern keeps every kind of layer.
    assert recipe_rules.shorter("M-M-M-M*-M-M-M-M/E", 3) == "M-M-M-M*-/E"


def output(*losses: float, first: int = 1) -> str:
    lines = (f" iteration {n}/ 6 | lm loss: {loss:.6E} |" for n, loss in enumerate(losses, first))
    return "\n".join(lines)


GOOD = output(7.0, 6.9, 6.8, 6.7, 6.6, 6.5)


@pytest.mark.parametrize(
    ("second", "outcome"),
    [
        (output(6.7, 6.6, 6.5, first=4), "passed"),
        (output(6.7, 6.9, 6.5, first=4), "failed"),
        (output(7.0, 6.9, first=1) + "\n" + output(float("nan"), first=3), "failed"),
        ("", "failed"),
    ],
)
def test_a_resumed_run_repeats_the_losses(second: str, outcome: str) -> None:
    phases = [Phase(0, GOOD, 6), Phase(0, second, 6)]
    assert judge(phases, {}, resumes=True).outcome == outcome


@pytest.mark.parametrize(
    ("status", "text", "outcome"),
    [
        (0, GOOD, "passed"),
        (0, output(7.0, 6.9), "failed"),
        (0, output(7.0, 7.1, 7.2, 7.3, 7.4, 7.5), "failed"),
        (0, output(70.0, 6.9, 6.8, 6.7, 6.6, 6.5), "failed"),
        (1, GOOD + "\n[rank1]: ValueError: injected", "failed"),
        (2, "accel-bridge: error: rank 0: It is refused.\n  next: nothing", "refused"),
        (1, "accel-bridge: error: rank 0: Training stopped: A chunk.\n  next: it", "failed"),
        (1, "accel-bridge: error: It is refused.\n[rank1]: ValueError: injected", "failed"),
        (-1, GOOD, "failed"),
    ],
)
def test_what_an_end_means(status: int, text: str, outcome: str) -> None:
    assert judge([Phase(status, text, 6)], {}, resumes=False).outcome == outcome
