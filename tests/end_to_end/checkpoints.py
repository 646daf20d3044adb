"""Checkpoints that the layouts start from, and the losses of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from end_to_end import adaptor_2023
from end_to_end.launcher import MOE, Run, train


def _checkpoint(folder: Path, *arguments: str) -> Path:
    """Three iterations of one process, saved independently of the layout."""
    train("--save", str(folder), "--save-interval", "3", *arguments, iterations=3).succeeded()
    return folder


@pytest.fixture(scope="session")
def dense_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the dense test model."""
    return _checkpoint(tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="session")
def moe_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the test model with experts."""
    return _checkpoint(tmp_path_factory.mktemp("moe"), *MOE)


@pytest.fixture(scope="session")
def dense_reference(dense_checkpoint: Path) -> Run:
    """Ten iterations of one process in fp32 from the dense checkpoint."""
    return train("--load", str(dense_checkpoint), "--finetune").succeeded()


@pytest.fixture(scope="session")
def dense_reference_bf16(dense_checkpoint: Path) -> Run:
    """The same in bf16."""
    return train("--load", str(dense_checkpoint), "--finetune", "--bf16").succeeded()


@pytest.fixture(scope="session")
def moe_reference(moe_checkpoint: Path) -> Run:
    """Ten iterations of one process in fp32 from the checkpoint with experts."""
    return train("--load", str(moe_checkpoint), "--finetune", *MOE).succeeded()


@pytest.fixture(scope="session")
def adaptor_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the model that the 2023 adaptor's commands are tried on."""
    return _checkpoint(tmp_path_factory.mktemp("adaptor"), *adaptor_2023.MODEL)
