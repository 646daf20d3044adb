"""A test of the tests: the tolerance policy catches every injected fault, at the right part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from case_sample import sample

from accel_bridge.apps.parity import _run
from accel_bridge.apps.parity._run import run_case
from accel_bridge.kernels import CONTRACTS
from accel_bridge.kernels.cases import Case

from . import injected, injected_attention, wrong_arguments
from .support import CASES

pytestmark = pytest.mark.usefixtures("references_once")
ERRORS = [
    pytest.param(contract, *error, id=f"{contract}: {name}")
    for contract, errors in {
        **injected.INJECTED,
        "attention": injected_attention.INJECTED,
    }.items()
    for name, error in errors.items()
]


def _slightly_wrong(result: torch.Tensor) -> torch.Tensor:
    """Rounded to bfloat16, 2% larger where that changes nothing, or with another last bit."""
    rounded = result.bfloat16().to(result.dtype)
    if result.dtype == torch.float32 and not torch.equal(rounded, result):
        return rounded
    if result.is_floating_point() and result.element_size() > 1:
        return result * 1.02
    return (result.view(torch.uint8) ^ 1).view(result.dtype)


def sampled(contract: str) -> list[Case]:
    """Cases of a contract, each option of a call among them."""
    return sample((case for case in CASES if case.contract == contract), 5)


@pytest.mark.parametrize("contract", CONTRACTS)
def test_a_small_fault_in_any_result_or_gradient_is_caught(
    contract: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new contract's cases are judged here; :data:`ERRORS` adds faults that need thought."""
    kernel = CONTRACTS[contract].kernel(CONTRACTS[contract].reference, "injected")
    parts, caught = set[str](), set[str]()
    for case in sampled(contract):
        if case.expected is not None:
            continue
        right, _ = _run._yardstick(case, {})
        parts |= right.keys()
        for part in right.keys() - caught:
            wrong = {**right, part: _slightly_wrong(right[part])}
            with monkeypatch.context() as patched:
                patched.setattr(_run, "evaluate", lambda *_, wrong=wrong: wrong)
                row = run_case(case, kernel)
            if part in {found.part for found in row.measurements if not found.passed}:
                caught.add(part)
    assert parts
    assert parts == caught


@pytest.mark.parametrize("contract", CONTRACTS)
def test_an_argument_that_is_used_wrongly_is_caught(contract: str) -> None:
    """Of every input of a call, in some case."""
    own = sampled(contract)
    unseen, caught = [], 0
    for words, name, change in wrong_arguments.changes(own):
        function = injected.with_changes(
            contract, **{name: lambda inputs, name=name, change=change: change(inputs[name])}
        )
        kernel = CONTRACTS[contract].kernel(function, "injected")
        rows = (run_case(case, kernel) for case in wrong_arguments.changed(own, name, change))
        # The reference may refuse the other value, or be unable to compute with it.
        found = next((row for row in rows if row.verdict == "fail"), None)
        if found is None:
            unseen.append(words)
        else:
            caught += bool(found.measurements)
    assert not unseen
    assert caught


@pytest.mark.parametrize(("contract", "function", "part", "words"), ERRORS)
def test_injected_fault_is_caught(
    contract: str, function: Callable[..., Any], part: str, words: str
) -> None:
    chosen = tuple(case for case in CASES if case.contract == contract and words in case.name)
    assert chosen
    kernel = CONTRACTS[contract].kernel(function, "injected")
    seen = []
    for case in chosen:
        row = run_case(case, kernel)
        named = {found.part for found in row.measurements if not found.passed}
        # An input without any gradient makes autograd itself stop: that names it well enough.
        stopped = part.startswith("grad ") and row.reason
        if row.verdict == "fail" and (part in named or stopped):
            return
        seen.append((row.verdict, row.reason, named))
    raise AssertionError(f"no case shows a wrong {part}: {seen}")
