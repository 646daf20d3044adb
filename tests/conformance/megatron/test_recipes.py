"""The rules and the judge of the recipe runner."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import recipe_inference
import recipe_rules
import recipe_runs
from recipe_verdicts import Phase, judge


@pytest.mark.parametrize(
    ("layout", "world", "left"),
    [
        ({}, 2, {}),
        ({"--tensor-model-parallel-size": 2, "--pipeline-model-parallel-size": 2}, 8, {}),
        ({"--context-parallel-size": 4, "--pipeline-model-parallel-size": 2}, 8, {}),
        (
            {"--num-experts": 8, "--expert-model-parallel-size": 4},
            4,
            {"--expert-model-parallel-size": 4},
        ),
        (
            {"--num-experts": 64, "--expert-model-parallel-size": 64},
            8,
            {"--expert-model-parallel-size": 8},
        ),
        ({"--num-distributed-optimizer-instances": 2}, 2, {}),
    ],
)
def test_a_layout_fits_eight_processes(
    layout: dict[str, object], world: int, left: dict[str, object]
) -> None:
    assert recipe_rules.processes(layout) == world
    assert {flag: layout[flag] for flag in left} == left


@pytest.mark.parametrize(
    ("pattern", "stages", "short"),
    [
        ("M-M-M-M*-M-M-", 1, "M-M-M-M*"),
        ("M-M-M-M*-M-M-M-M", 3, "M-M-M-M*-"),
        ("M-|M*", 2, "M-|M*"),
        ("MEME*MEME/*E/*E", 1, "MEME*/*E/*E"),
    ],
)
def test_a_pattern_keeps_every_kind_of_layer(pattern: str, stages: int, short: str) -> None:
    assert recipe_rules.shorter(pattern, stages) == short


def test_groups_of_micro_batches_divide_the_batch() -> None:
    recipe = {
        "--num-layers": 12,
        "--pipeline-model-parallel-size": 4,
        "--num-layers-per-virtual-pipeline-stage": 1,
        "--microbatch-group-size-per-virtual-pipeline-stage": 5,
        "--micro-batch-size": 2,
        "--global-batch-size": 40,
    }
    small, world = recipe_rules.scale(recipe, resumes=False)
    replicas = world // 4
    assert int(str(small["--global-batch-size"])) // (2 * replicas) % 5 == 0


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


def test_a_rank_of_mxfp8_has_whole_blocks() -> None:
    """Rows of a rank's projection: two inner widths, two states of eight groups, the heads."""
    recipe = {
        "--hybrid-layer-pattern": "ME*",
        "--tensor-model-parallel-size": 2,
        "--fp8-recipe": "mxfp8",
    }
    small, _ = recipe_rules.scale(recipe)
    heads, head, state = (
        int(str(small[f"--mamba-{name}"])) for name in ("num-heads", "head-dim", "state-dim")
    )
    assert (2 * heads * head + 2 * 8 * state + heads) // 2 % 32 == 0


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


def test_a_small_hybrid_model_keeps_few_requests_and_what_its_layers_take(tmp_path: Path) -> None:
    recipe = {"--hybrid-layer-pattern": "MEM*", "--transformer-impl": "inference_optimized"}
    words, _ = recipe_inference.scale(recipe, tmp_path, tmp_path)
    flags = dict(pairwise(words))
    assert flags["--inference-dynamic-batching-max-requests"] == "16"
    assert float(flags["--inference-dynamic-batching-buffer-size-gb"]) < 1
    assert recipe_inference.scale({"--expert-model-parallel-size": 8}, tmp_path, tmp_path)[1] == 4
    # A size is made smaller, never larger.
    for given, wanted in (("--incoming-requests-per-step", 1), ("--inference-repeat-n", 1)):
        words, _ = recipe_inference.scale({given: 1}, tmp_path, tmp_path)
        assert dict(pairwise(words))[given] == str(wanted)
    # Megatron's optimized layers have no gated activation.
    _, trained = recipe_inference.checkpoint("hybrid", recipe, tmp_path, tmp_path)
    assert "--swiglu" not in trained
    experts = recipe | {"--num-experts": 8}
    assert "--squared-relu" in recipe_inference.checkpoint("hybrid", experts, tmp_path, tmp_path)[1]
    usual = {"--hybrid-layer-pattern": "MEM*"}
    assert "--swiglu" in recipe_inference.checkpoint("hybrid", usual, tmp_path, tmp_path)[1]


def test_a_recipe_that_no_list_names_generates_or_trains(tmp_path: Path) -> None:
    for name, mode in (("listed_nowhere", "inference"), ("listed_nowhere_gb200", "pretraining")):
        directory = tmp_path / recipe_runs.CASES / "hybrid" / name
        directory.mkdir(parents=True)
        (directory / "model_config.yaml").write_text(f"MODE: {mode}\n")
    generates, trains = recipe_runs.recipes(tmp_path)
    assert generates.script == recipe_runs.GENERATOR
    assert trains.script == "pretrain_hybrid.py"
