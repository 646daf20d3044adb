"""Checkpoints that the layouts start from, and the losses of one process; each is made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from accel_bridge.apps.testing import MOE, FinishedRuns
from end_to_end import adaptor_2023
from end_to_end.launcher import COUNTING, DOCUMENTS, Run, train

#: ``train``, once in a session for the same arguments.
TrainOnce = Callable[..., Run]
#: Three iterations of one process with some arguments, saved independently of the layout.
Checkpoint = Callable[..., Path]


@pytest.fixture(scope="session")
def train_once(finished_runs: FinishedRuns) -> TrainOnce:
    """Trains, or gives the run that another test made with the same arguments."""

    def run(*arguments: str, **options: object) -> Run:
        def make(directory: Path) -> None:
            train(*arguments, **options).succeeded().save(directory / "run.json")

        directory = finished_runs.directory(("train", arguments, sorted(options.items())), make)
        return Run.load(directory / "run.json")

    return run


@pytest.fixture(scope="session")
def checkpoint(finished_runs: FinishedRuns) -> Checkpoint:
    """Makes a checkpoint of the test model with further arguments."""

    def saved(*arguments: str) -> Path:
        def make(directory: Path) -> None:
            save = ["--save", str(directory), "--save-interval", "3"]
            train(*save, *arguments, iterations=3).succeeded()

        return finished_runs.directory(("checkpoint", arguments), make)

    return saved


@pytest.fixture(scope="session")
def dense_checkpoint(checkpoint: Checkpoint) -> Path:
    """A checkpoint of the dense test model."""
    return checkpoint()


@pytest.fixture(scope="session")
def moe_checkpoint(checkpoint: Checkpoint) -> Path:
    """A checkpoint of the test model with experts."""
    return checkpoint(*MOE)


@pytest.fixture(scope="session")
def dense_reference(train_once: TrainOnce, dense_checkpoint: Path) -> Run:
    """Five iterations of one process in fp32 from the dense checkpoint."""
    return train_once("--load", str(dense_checkpoint), "--finetune")


@pytest.fixture(scope="session")
def moe_reference(train_once: TrainOnce, moe_checkpoint: Path) -> Run:
    """Five iterations of one process in fp32 from the checkpoint with experts."""
    return train_once("--load", str(moe_checkpoint), "--finetune", *MOE)


@pytest.fixture(scope="session")
def documents_checkpoint(checkpoint: Checkpoint) -> Path:
    """A checkpoint of the test model with rotary embeddings, trained on rows of documents."""
    return checkpoint(*DOCUMENTS)


@pytest.fixture(scope="session")
def documents_reference(train_once: TrainOnce, documents_checkpoint: Path) -> Run:
    """Five iterations of one process on rows of documents, its tensors counted."""
    load = ["--load", str(documents_checkpoint), "--finetune"]
    return train_once(*load, *DOCUMENTS, script=COUNTING)


@pytest.fixture(scope="session")
def adaptor_checkpoint(checkpoint: Checkpoint) -> Path:
    """A checkpoint of the model that the 2023 adaptor's commands are tried on."""
    return checkpoint(*adaptor_2023.MODEL)


@pytest.fixture
def adaptor_reference(train_once: TrainOnce, adaptor_checkpoint: Path) -> adaptor_2023.Reference:
    """Two iterations with upstream's own attention on the CPU, by dtype and window."""

    def reference(dtype: str, window: tuple[str, ...]) -> Run:
        command = adaptor_2023.upstream(dtype, window, adaptor_checkpoint)
        return train_once(*command, iterations=2, env=adaptor_2023.UPSTREAM)

    return reference
