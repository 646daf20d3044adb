"""Cross-entropy over two processes, each with half of the vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist

from accel_bridge.apps.parity._case import convert_all
from accel_bridge.apps.parity._run import compare, evaluate
from accel_bridge.backends.cpu.kernels import KERNELS
from accel_bridge.kernels import CROSS_ENTROPY, Kernel, reference_kernel
from accel_bridge.kernels.cases import Case, Inputs

from .support import CASES, on_two_ranks
from .test_linear_cross_entropy import LIMIT, over_ranks

#: The kernels that are judged. Each is called as a user calls it: outside its range its reference
#: runs.
JUDGED: Final[dict[str, Kernel[Any, Any]]] = {
    "cpu": KERNELS[CROSS_ENTROPY],
    "reference": reference_kernel(CROSS_ENTROPY, "for a test"),
}


def _part(values: Inputs, group: dist.ProcessGroup) -> dict[str, Any]:
    """This rank's part of the logits and of their gradient."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    return {
        name: value.chunk(ranks, dim=-1)[rank] if name in ("logits", "grad logits") else value
        for name, value in values.items()
    }


def _wrong(case: Case, kernel: Kernel[Any, Any], group: dist.ProcessGroup) -> list[str]:
    """What this rank's loss and gradient have otherwise than the whole vocabulary on one."""
    inputs = case.inputs()
    plain, exact = (
        _part(evaluate(case, CROSS_ENTROPY.reference, convert_all(inputs, *dtype)), group)
        for dtype in ((), (torch.float64,))
    )
    mine = {**convert_all(_part(inputs, group)), "group": group}
    found = compare(evaluate(case, kernel, mine), exact, plain)
    return [one.part for one in found if not one.passed]


def _judge(group: dist.ProcessGroup) -> dict[str, Any]:
    """What failed, for each kernel; the largest error of loss and layer in one."""
    cases = [
        case
        for case in CASES
        if case.contract == "cross_entropy" and case.inputs()["logits"].shape[-1] % 2 == 0
    ]
    assert len(cases) >= 6
    failed = {
        name: [part for case in cases for part in _wrong(case, kernel, group)]
        for name, kernel in JUDGED.items()
    }
    return {"failed": failed, "with its layer": over_ranks(group)}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_two_ranks(tmp_path: Path) -> None:
    for rank in on_two_ranks(_judge, tmp_path):
        assert rank["failed"] == {name: [] for name in JUDGED}
        assert rank["with its layer"] < LIMIT
