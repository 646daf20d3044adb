"""Every kernel of the CPU, and every reference, within the tolerance policy."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accel_bridge.apps.parity._case import as_arguments, convert_all
from accel_bridge.apps.parity._run import check_kernel
from accel_bridge.backends.cpu.kernels import KERNELS
from accel_bridge.kernels import ATTENTION, CONTRACTS, Kernel, reference_kernel
from accel_bridge.kernels.cases import Case

from .support import CASES, failures

pytestmark = pytest.mark.usefixtures("references_once")


# Those that are the reference are below. Attention's 13 seconds are spent once, in
# tests/parity/test_backends.py.
@pytest.mark.parametrize(
    "kernel",
    [one for one in KERNELS if not one.is_reference and one.contract is not ATTENTION],
    ids=lambda kernel: kernel.contract.name,
)
def test_cpu_kernel_passes(kernel: Kernel[Any, Any]) -> None:
    assert failures(kernel) == []


def is_judged_elsewhere(case: Case) -> bool:
    """Whether the CPU's attention takes it: it is then compared with the same reference there."""
    arguments = as_arguments(case.contract, convert_all(case.inputs()))
    return KERNELS[ATTENTION].supports(**arguments) is None


#: Long ones whose reference is the CPU's kernel: judged in tests/parity/test_backends.py.
ELSEWHERE = {"attention_max_logit", "gated_delta_rule", "state_space_scan"}


def test_what_is_judged_elsewhere_is_the_reference() -> None:
    assert all(KERNELS.resolve(CONTRACTS[name]).is_reference for name in ELSEWHERE)


@pytest.mark.parametrize("name", [name for name in CONTRACTS if name not in ELSEWHERE])
def test_reference_passes_every_case_and_is_outside_of_none(name: str) -> None:
    kernel = reference_kernel(CONTRACTS[name], "for a test")
    cases = [case for case in CASES if case.contract == name]
    if name == "attention":
        cases = [case for case in cases if not is_judged_elsewhere(case)]
    rows = check_kernel(kernel, cases)
    assert rows
    assert {row.verdict for row in rows} == {"pass"}


@pytest.mark.parametrize("outside", [-1, -100, 7])
def test_a_target_outside_the_vocabulary_is_finite_and_is_the_references(outside: int) -> None:
    """BERT's data gives -1 where nothing was masked, and weighs it with zero."""
    torch.manual_seed(0)
    logits = torch.randn(4, 7, requires_grad=True)
    target = torch.tensor([3, outside, 0, 6])
    contract = CONTRACTS["cross_entropy"]
    loss = KERNELS[contract](logits, target)
    torch.testing.assert_close(loss, contract.reference(logits, target))
    (gradient,) = torch.autograd.grad(
        loss * torch.tensor([1.0, 0.0, 1.0, 1.0]), logits, torch.ones(4)
    )
    assert loss.isfinite().all()
    assert gradient[1].eq(0).all()
