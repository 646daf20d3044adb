"""Cross-entropy over two processes, and the errors that only two processes show."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist

from accel_bridge.apps.parity._case import convert_all
from accel_bridge.apps.parity._cases import all_cases
from accel_bridge.apps.parity._run import CaseResult, compare, evaluate
from accel_bridge.backends.cpu.kernels import KERNELS
from accel_bridge.kernels import CONTRACTS, CROSS_ENTROPY, Kernel
from accel_bridge.kernels.cases import Case, Inputs
from accel_bridge.kernels.cross_entropy import cross_entropy_reference

from .support import on_two_ranks

_RANKS: Final = 2
_MODULE: Final = sys.modules[cross_entropy_reference.__module__]


def check_vocab_parallel(
    kernel: Kernel[Any, Any], group: dist.ProcessGroup, device: torch.device | str = "cpu"
) -> list[CaseResult]:
    """``cross_entropy`` over the ranks of ``group`` against the whole vocabulary on one.

    Every rank calls this and judges its own loss and its own slice of the gradient. The kernel is
    called as a user calls it: outside its range its reference runs.
    """
    ranks = dist.get_world_size(group)
    return [
        _run_over(case, kernel, group, device)
        for case in all_cases()
        if case.contract == "cross_entropy" and case.inputs()["logits"].shape[-1] % ranks == 0
    ]


def _run_over(
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


def _call_with(**injected: Callable[..., Any]) -> Kernel[Any, Any]:
    """The reference, with functions of its module replaced during the call."""

    def cross_entropy(**options: Any) -> torch.Tensor:
        originals = {name: getattr(_MODULE, name) for name in injected}
        try:
            for name, function in injected.items():
                setattr(_MODULE, name, function)
            return cross_entropy_reference(**options)
        finally:
            for name, function in originals.items():
                setattr(_MODULE, name, function)

    return CROSS_ENTROPY.kernel(cross_entropy, "injected")


class _SummedTwice(torch.autograd.Function):
    """An all-reduce whose gradient is all-reduced as well."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        total = value.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradient.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


def _reversed_ranks(**options: Any) -> torch.Tensor:
    """Takes its slice for the other rank's."""
    target, part = options["target"], options["logits"].shape[-1]
    return cross_entropy_reference(**{**options, "target": (target + part) % (part * _RANKS)})


#: name -> (kernel, must pass).
KERNELS_TO_JUDGE: Final[dict[str, tuple[Kernel[Any, Any], bool]]] = {
    "cpu": (KERNELS[CROSS_ENTROPY], True),
    "reference": (CROSS_ENTROPY.kernel(cross_entropy_reference, "reference"), True),
    "no sum over ranks": (_call_with(_sum_over_ranks=lambda value, group: value), False),
    "gradient summed over ranks": (_call_with(_SumOverRanks=_SummedTwice), False),
    "ranks reversed": (CROSS_ENTROPY.kernel(_reversed_ranks, "injected"), False),
}


def _judge(group: dist.ProcessGroup) -> dict[str, Any]:
    """Number of rows and the parts that failed, for each kernel."""
    found = {}
    for name, (kernel, _) in KERNELS_TO_JUDGE.items():
        rows = check_vocab_parallel(kernel, group)
        failed = {part.part for row in rows for part in row.measurements if not part.passed}
        found[name] = [len(rows), sorted(failed)]
    return found


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_two_ranks(_judge, tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", list(KERNELS_TO_JUDGE))
def test_two_ranks(verdicts: list[dict[str, Any]], name: str) -> None:
    must_pass = KERNELS_TO_JUDGE[name][1]
    failed = [part for rank in verdicts for part in rank[name][1]]
    assert all(rank[name][0] >= 6 for rank in verdicts)
    assert bool(failed) is not must_pass, failed
    if name == "no sum over ranks":
        assert "output" in failed
    if name == "gradient summed over ranks":
        assert set(failed) == {"grad logits"}
