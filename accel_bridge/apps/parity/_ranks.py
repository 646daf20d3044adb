"""Parity of the only kernel that communicates: cross-entropy of a vocabulary split over ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from accel_bridge.apps.parity._case import Case, Inputs, convert_all
from accel_bridge.apps.parity._cases import all_cases
from accel_bridge.apps.parity._run import CaseResult, compare, evaluate
from accel_bridge.kernels import CONTRACTS, Kernel


def check_vocab_parallel(
    kernel: Kernel[Any, Any], group: dist.ProcessGroup, device: torch.device | str = "cpu"
) -> list[CaseResult]:
    """``cross_entropy`` over the ranks of ``group`` against the whole vocabulary on one.

    Every rank calls this and judges its own loss and its own slice of the gradient. The kernel is
    called as a user calls it: outside its range its reference runs.
    """
    ranks = dist.get_world_size(group)
    return [
        _run(case, kernel, group, device)
        for case in all_cases()
        if case.contract == "cross_entropy" and case.inputs()["logits"].shape[-1] % ranks == 0
    ]


def _run(
    case: Case, kernel: Kernel[Any, Any], group: dist.ProcessGroup, device: torch.device | str
) -> CaseResult:
    inputs = case.inputs()
    reference = CONTRACTS[case.contract].reference
    plain = evaluate(case, reference, convert_all(inputs))
    exact = evaluate(case, reference, convert_all(inputs, torch.float64))
    mine = {**convert_all(_slice(inputs, group), device=device), "group": group}
    result = evaluate(case, kernel, mine)
    measurements = compare(result, _slice(exact, group), _slice(plain, group))
    passed = all(part.passed for part in measurements)
    return CaseResult(case, "pass" if passed else "fail", tuple(measurements))


def _slice(values: Inputs, group: dist.ProcessGroup) -> dict[str, Any]:
    """This rank's part of the logits and of their gradient."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    return {
        name: value.chunk(ranks, dim=-1)[rank] if name in ("logits", "grad logits") else value
        for name, value in values.items()
    }
