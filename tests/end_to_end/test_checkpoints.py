"""Checkpoints between layouts, specs and libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from end_to_end.checkpoints import TrainOnce
from end_to_end.launcher import UNCHANGED, Run, train, worst_difference

#: The checkpoint form of the optimizer that does not depend on the layout.
OPTIMIZER = ["--use-distributed-optimizer", "--dist-ckpt-optim-fully-reshardable"]


@pytest.fixture
def whole(train_once: TrainOnce) -> Run:
    """Six iterations with the distributed optimizer, not interrupted."""
    return train_once("--use-distributed-optimizer", iterations=6)


def agree(resumed: Run, whole: Run) -> None:
    """The iterations after the third are the uninterrupted run's."""
    assert resumed.losses == pytest.approx({n: whole.losses[n] for n in (4, 5, 6)}, abs=1e-5)


def test_resumes_at_another_layout_with_optimizer_state(tmp_path: Path, whole: Run) -> None:
    """Iterations after a resume at TP2 equal an uninterrupted run's.

    Without Apex or Transformer Engine upstream cannot load this state; fixed by hand it shares
    one step count among all parameters, which the losses show.
    """
    directory = str(tmp_path)
    save = [*OPTIMIZER, "--save", directory, "--save-interval", "3", "--exit-interval", "3"]
    train(*save, iterations=6).succeeded()
    # Without RNG states: they belong to a layout, and nothing here draws random numbers.
    load = [*OPTIMIZER, "--load", directory, "--no-load-rng", "--tensor-model-parallel-size", "2"]
    agree(train(*load, processes=2, iterations=6).succeeded(), whole)


def test_resumes_the_default_form_of_the_distributed_optimizer(tmp_path: Path, whole: Run) -> None:
    save = ["--use-distributed-optimizer", "--save", str(tmp_path), "--load", str(tmp_path)]
    save += ["--save-interval", "100"]
    # As a user's: not from the warm Python.
    train(*save, "--exit-interval", "3", iterations=6, real=True).succeeded()
    agree(train(*save, iterations=6).succeeded(), whole)


def test_a_checkpoint_goes_through_the_local_spec(
    tmp_path: Path, dense_checkpoint: Path, dense_reference: Run
) -> None:
    """Transformer Engine's names -> local names -> Transformer Engine's: the same weights.

    All norms are among them, those that live in the linear layers too.
    """
    local = ["--load", str(dense_checkpoint), "--finetune", "--transformer-impl", "local"]
    through = train(*local, *UNCHANGED, "--save", str(tmp_path), iterations=1).succeeded()
    assert through.losses[1] == dense_reference.losses[1]
    back = train("--load", str(tmp_path), "--finetune").succeeded()
    assert worst_difference(dense_reference, back) == 0.0


#: What torch's FSDP2 needs besides; it has its own buffers of gradients.
FSDP2 = ["--use-torch-fsdp2", "--bf16", "--no-gradient-accumulation-fusion"]
FSDP2 += ["--untie-embeddings-and-output-weights", "--ckpt-format", "torch_dist"]


def test_fsdp2_resumes_with_its_number_of_steps(tmp_path: Path) -> None:
    """Every digit of an uninterrupted run; without the patch Adam counts from one again."""
    save = [*FSDP2, "--save", str(tmp_path), "--save-interval", "2"]
    whole = train(*save, processes=2, iterations=4).succeeded()
    load = [*FSDP2, "--load", str(tmp_path), "--ckpt-step", "2"]
    resumed = train(*load, processes=2, iterations=4).succeeded()
    assert resumed.losses == {number: whole.losses[number] for number in (3, 4)}
    without = {"ACCEL_BRIDGE_PATCHES": "-fsdp2-resume"}
    injected = train(*load, processes=2, iterations=4, env=without).succeeded()
    assert injected.losses[3] == whole.losses[3]
    assert abs(injected.losses[4] - whole.losses[4]) > 1e-3
