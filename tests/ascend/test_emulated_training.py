"""Megatron on emulated NPUs trains as on the CPU, from the same checkpoint, in every layout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from end_to_end.launcher import COUNTING, DOCUMENTS, ROOT, Run, worst_difference

from accel_bridge.apps.testing import MOE
from ascend.conftest import emulated

#: Largest accepted difference of a loss in fp32.
FP32 = 1e-5


@pytest.mark.usefixtures("emulate")
class TestFp32:
    """Five iterations from one checkpoint."""

    def test_one_npu_equals_the_cpu(self, dense_checkpoint: Path, dense_reference: Run) -> None:
        """As a user's: not from the warm Python."""
        run = emulated("--load", str(dense_checkpoint), "--finetune", real=True).succeeded()
        assert worst_difference(dense_reference, run) <= FP32
        assert "EMULATED" in run.output
        reached = re.search(r"patches used: (\d+)", run.output)
        assert reached is not None
        assert int(reached[1]) >= 5

    def test_two_npus_that_share_experts_and_each_context_equal_the_cpu(
        self, moe_checkpoint: Path, moe_reference: Run
    ) -> None:
        layout = "--context-parallel-size 2 --expert-model-parallel-size 2 "
        layout += "--use-distributed-optimizer"
        load = ["--load", str(moe_checkpoint), "--finetune", *MOE]
        run = emulated(*load, *layout.split(), processes=2).succeeded()
        assert worst_difference(moe_reference, run) <= FP32

    def test_documents_train_as_on_the_cpu_and_leave_nothing_behind(
        self, documents_checkpoint: Path, documents_reference: Run
    ) -> None:
        load = ["--load", str(documents_checkpoint), "--finetune", *DOCUMENTS]
        run = emulated(*load, script=COUNTING).succeeded()
        assert worst_difference(documents_reference, run) <= FP32
        assert run.left_behind == 0

    def test_four_npus_equal_the_cpu(self, dense_checkpoint: Path, dense_reference: Run) -> None:
        layout = "--pipeline-model-parallel-size 2 --tensor-model-parallel-size 2 "
        layout += "--sequence-parallel"
        load = ["--load", str(dense_checkpoint), "--finetune"]
        run = emulated(*load, *layout.split(), processes=4).succeeded()
        assert worst_difference(dense_reference, run) <= FP32

    @pytest.mark.conformance
    def test_an_injected_wrong_scale_is_seen(
        self,
        dense_checkpoint: Path,
        dense_reference: Run,
    ) -> None:
        plugin = {"ACCEL_BRIDGE_PLUGINS": "end_to_end.injected", "PYTHONPATH": str(ROOT / "tests")}
        run = emulated("--load", str(dense_checkpoint), "--finetune", env=plugin).succeeded()
        assert worst_difference(dense_reference, run) > FP32
