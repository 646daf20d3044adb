"""Low-rank adapters (LoRA), as MindSpeed-LLM's fine-tuning scripts ask for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from accel_bridge.apps.testing import FinishedRuns
from end_to_end.launcher import Run, train, worst_difference

#: Of MindSpeed-LLM's scripts.
TARGETS = ["--lora-target-modules", *"linear_qkv linear_proj linear_fc1 linear_fc2".split()]
LORA = ["--lora-r", "4", "--lora-alpha", "8", "--lora-fusion", *TARGETS]


@pytest.fixture
def adapted(dense_checkpoint: Path, finished_runs: FinishedRuns) -> tuple[Path, Run]:
    """Three iterations from a model without adapters; saved after each."""

    def make(directory: Path) -> None:
        save = ["--save", str(directory), "--save-interval", "1"]
        load = ["--load", str(dense_checkpoint), "--finetune"]
        run = train(*load, *LORA, *save, iterations=3).succeeded()
        run.save(directory / "run.json")

    directory = finished_runs.directory("adapters", make)
    return directory, Run.load(directory / "run.json")


def from_first(directory: Path, *arguments: str, processes: int = 1) -> Run:
    """The iterations after the first, from its checkpoint."""
    load = ["--load", str(directory), "--ckpt-step", "1", *LORA]
    return train(*load, *arguments, processes=processes, iterations=3)


def test_new_adapters_change_nothing_and_then_learn(
    adapted: tuple[Path, Run], dense_reference: Run
) -> None:
    _, run = adapted
    assert run.losses[1] == dense_reference.losses[1]
    assert run.losses[3] != dense_reference.losses[3]
    assert "LoRA: the checkpoint has no adapters, so they start new" in run.output
    assert "adapters; " in run.output


def test_only_adapters_are_trained(adapted: tuple[Path, Run]) -> None:
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    directory, _ = adapted
    models = []
    for name in ("iter_0000001", "iter_0000003"):
        found: dict[str, object] = {}
        _load_state_dict(
            found,
            storage_reader=FileSystemReader(directory / name),
            planner=_EmptyStateDictLoadPlanner(),
            no_dist=True,
        )
        models.append({k: v for k, v in found.items() if not k.startswith("optimizer")})
    first, last = models
    changed = {
        name
        for name, value in first.items()
        if isinstance(value, torch.Tensor) and not torch.equal(value, last[name])  # type: ignore[arg-type]
    }
    assert changed
    assert all(".lora_" in name for name in changed), changed


def test_two_ranks_with_sequence_parallelism_train_alike(adapted: tuple[Path, Run]) -> None:
    directory, run = adapted
    split = "--tensor-model-parallel-size 2 --sequence-parallel"
    other = from_first(directory, *split.split(), processes=2).succeeded()
    expected = {number: loss for number, loss in run.losses.items() if number > 1}
    assert other.losses.keys() == expected.keys()
    assert max(abs(other.losses[number] - expected[number]) for number in expected) <= 1e-5


@pytest.mark.conformance
def test_a_wrong_scale_is_noticed(adapted: tuple[Path, Run]) -> None:
    directory, run = adapted
    other = from_first(directory, "--lora-alpha", "64").succeeded()
    assert abs(other.losses[3] - run.losses[3]) > 1e-4


def test_adapters_are_saved_alone_and_loaded_beside_the_model(
    adapted: tuple[Path, Run], dense_checkpoint: Path, tmp_path: Path
) -> None:
    _, run = adapted
    alone = tmp_path / "adapters"
    save = ["--save", str(alone), "--save-interval", "1", "--lora-ckpt-filter"]
    load = ["--load", str(dense_checkpoint), *LORA]
    train(*load, "--finetune", *save, iterations=3).succeeded()
    (alone / "latest_checkpointed_iteration.txt").write_text("1")
    shutil.rmtree(alone / "iter_0000003")
    again = train(*load, "--lora-load", str(alone), iterations=3).succeeded()
    assert again.losses.keys() == {2, 3}
    assert worst_difference(again, _after_first(run)) <= 1e-5


def _after_first(run: Run) -> Run:
    lines = [line for line in run.output.splitlines() if " iteration        1/" not in line]
    return Run(run.returncode, "\n".join(lines))


def test_a_target_that_is_no_linear_layer_is_refused(dense_checkpoint: Path) -> None:
    load = ["--load", str(dense_checkpoint), "--finetune"]
    run = train(*load, "--lora-target-modules", "linear_qkv", "q_proj", iterations=1)
    assert run.returncode != 0
    assert "--lora-target-modules names what is no linear layer of this model" in run.output
    assert "not found: q_proj" in run.output
    assert "choose from: linear_fc1, linear_fc2, linear_proj, linear_qkv" in run.output
