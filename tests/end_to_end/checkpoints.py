"""Checkpoints that the layouts start from, and the losses of one process.

Each is made once, by the first of pytest-xdist's processes that needs it; the others wait for it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from end_to_end import adaptor_2023
from end_to_end.launcher import COUNTING, DOCUMENTS, MOE, SCRIPT, Run, train


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this test session, the same for all its processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


def once(folder: Path, name: str, make: Callable[[Path], Run]) -> Run:
    """The run that ``make`` makes in ``folder / name``; another process's, when there is one."""
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = folder / f"{name}.json"
        if not record.exists():
            run = make(folder / name).succeeded()
            record.write_text(json.dumps([run.returncode, run.output]))
        return Run(*json.loads(record.read_text()))


def _checkpoint(folder: Path, name: str, *arguments: str) -> Path:
    """Three iterations of one process, saved independently of the layout."""

    def make(path: Path) -> Run:
        return train("--save", str(path), "--save-interval", "3", *arguments, iterations=3)

    once(folder, name, make)
    return folder / name


def _reference(checkpoint: Path, *arguments: str, script: Path = SCRIPT) -> Run:
    """Ten iterations of one process from a checkpoint."""
    load = ["--load", str(checkpoint), "--finetune", *arguments]

    def make(path: Path) -> Run:
        return train(*load, script=script)

    return once(checkpoint.parent, f"{checkpoint.name}-reference", make)


@pytest.fixture(scope="session")
def dense_checkpoint(shared_folder: Path) -> Path:
    """A checkpoint of the dense test model."""
    return _checkpoint(shared_folder, "dense")


@pytest.fixture(scope="session")
def moe_checkpoint(shared_folder: Path) -> Path:
    """A checkpoint of the test model with experts."""
    return _checkpoint(shared_folder, "moe", *MOE)


@pytest.fixture(scope="session")
def dense_reference(dense_checkpoint: Path) -> Run:
    """Ten iterations of one process in fp32 from the dense checkpoint."""
    return _reference(dense_checkpoint)


@pytest.fixture(scope="session")
def moe_reference(moe_checkpoint: Path) -> Run:
    """Ten iterations of one process in fp32 from the checkpoint with experts."""
    return _reference(moe_checkpoint, *MOE)


@pytest.fixture(scope="session")
def documents_checkpoint(shared_folder: Path) -> Path:
    """A checkpoint of the test model with rotary embeddings, trained on rows of documents."""
    return _checkpoint(shared_folder, "documents", *DOCUMENTS)


@pytest.fixture(scope="session")
def documents_reference(documents_checkpoint: Path) -> Run:
    """Ten iterations of one process on rows of documents, its tensors counted."""
    return _reference(documents_checkpoint, *DOCUMENTS, script=COUNTING)


@pytest.fixture(scope="session")
def adaptor_checkpoint(shared_folder: Path) -> Path:
    """A checkpoint of the model that the 2023 adaptor's commands are tried on."""
    return _checkpoint(shared_folder, "adaptor", *adaptor_2023.MODEL)


@pytest.fixture
def adaptor_reference(adaptor_checkpoint: Path) -> adaptor_2023.Reference:
    """Two iterations with upstream's own attention on the CPU, by dtype and window."""

    def reference(dtype: str, window: tuple[str, ...]) -> Run:
        name = "-".join(["adaptor", dtype, *window]).replace(",", "-")
        command = adaptor_2023.upstream(dtype, window, adaptor_checkpoint)
        return once(
            adaptor_checkpoint.parent,
            name,
            lambda path: train(*command, iterations=2, env=adaptor_2023.UPSTREAM),
        )

    return reference
