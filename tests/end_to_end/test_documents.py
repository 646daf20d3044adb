"""Several documents in one row: they train alike on every backend and leave no tensors behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from end_to_end.launcher import COUNTING, DOCUMENTS, FUSED_HOST, Run, train, worst_difference


def packed(checkpoint: Path, **environment: str) -> Run:
    """Five iterations from the checkpoint, the tensors that live counted after each."""
    load = ["--load", str(checkpoint), "--finetune", *DOCUMENTS]
    return train(*load, script=COUNTING, env=environment).succeeded()


def test_a_step_leaves_nothing_behind(documents_reference: Run) -> None:
    assert documents_reference.left_behind == 0


def test_a_row_of_documents_is_not_one_text(
    documents_checkpoint: Path, documents_reference: Run
) -> None:
    load = ["--load", str(documents_checkpoint), "--finetune"]
    one_text = train(*load, "--position-embedding-type", "rope").succeeded()
    assert worst_difference(documents_reference, one_text) > 1e-3


def test_stages_that_see_no_tokens_know_the_documents(
    documents_checkpoint: Path, documents_reference: Run
) -> None:
    """Two stages with two parts each: the middle ones need the boundaries, and the packed shape."""
    load = ["--load", str(documents_checkpoint), "--finetune", *DOCUMENTS]
    stages = "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"
    run = train(*load, *stages.split(), processes=2).succeeded()
    assert worst_difference(documents_reference, run) <= 1e-5


def test_the_bridges_own_rotary_embedding_trains_alike(
    documents_checkpoint: Path, documents_reference: Run
) -> None:
    run = packed(documents_checkpoint, **FUSED_HOST)
    assert worst_difference(documents_reference, run) <= 1e-5
    assert run.left_behind == 0


@pytest.mark.conformance
def test_wrong_angles_and_a_tensor_that_stays_are_noticed(
    documents_checkpoint: Path, documents_reference: Run
) -> None:
    run = packed(documents_checkpoint, **FUSED_HOST, INJECTED_ERROR="angles", INJECTED_LEAK="1")
    assert worst_difference(documents_reference, run) > 1e-4
    assert run.left_behind == 2
