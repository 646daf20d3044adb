"""Contracts, kernels, and the choice between them."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch

from accel_bridge.apps.parity._cases import all_cases
from accel_bridge.apps.parity._run import check_kernel, signature_difference
from accel_bridge.backends.cpu.kernels import KERNELS
from accel_bridge.device.backend import Backend, DeviceSpec, Probe
from accel_bridge.kernels import (
    ATTENTION,
    CONTRACTS,
    RMS_NORM,
    SWIGLU,
    AttentionMask,
    AttentionOptions,
    Contract,
    Kernel,
    Kernels,
    _contract,
    reference_kernel,
)
from accel_bridge.patching.host import Host

from .support import random

PAGE = Path(__file__).parents[2] / "docs/extend-kernel.md"


def squared_relu_reference(input: torch.Tensor) -> torch.Tensor:
    return torch.relu(input).square()


def test_the_pages_contract_brings_its_cases() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if "SQUARED_RELU = " in block)
    made: dict[str, Any] = {"squared_relu_reference": squared_relu_reference}
    exec(f"from __future__ import annotations\n{code}", made)
    try:
        kernel = made["SQUARED_RELU"].kernel(torch.relu, why="an injected fault")
        cases = [case for case in all_cases() if case.contract == "squared_relu"]
        right = check_kernel(reference_kernel(made["SQUARED_RELU"], "a test"), cases)
        wrong = check_kernel(kernel, cases)
    finally:
        del _contract._CONTRACTS["squared_relu"]
    assert [row.verdict for row in right] == ["pass"] * 9
    assert "fail" in {row.verdict for row in wrong}


class Other(Backend):
    """A backend with one kernel."""

    name = "other"
    title = "Other"
    priority = 1

    def probe(self) -> Probe:
        return Probe(True, "for a test")

    def device(self) -> DeviceSpec | None:
        return None

    def kernels(self) -> Kernels:
        return Kernels(SWIGLU.kernel(SWIGLU.reference, "for a test"))


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=list(CONTRACTS))
def test_every_parameter_of_a_contract_is_documented(contract: Contract[Any, Any]) -> None:
    assert contract.formula
    assert contract.source
    documented = inspect.getdoc(contract.reference) or ""
    for name, kind in get_type_hints(contract.reference).items():
        if name != "return":
            assert name in documented, f"{contract.name} does not explain {name}"
        if is_dataclass(kind):
            for field in fields(kind):
                assert f":param {field.name}: " in (kind.__doc__ or ""), field.name


@pytest.mark.parametrize("kernel", list(KERNELS), ids=lambda kernel: kernel.contract.name)
def test_cpu_kernels_follow_their_contracts(kernel: Kernel[Any, Any]) -> None:
    assert signature_difference(kernel) is None
    assert kernel.why
    assert kernel.is_reference == kernel.why.startswith("reference: ")


def test_the_cpu_has_a_kernel_for_every_contract() -> None:
    assert {kernel.contract.name for kernel in KERNELS} == set(CONTRACTS)


def test_a_host_has_the_backends_kernels_and_no_others() -> None:
    host = Host(Other(), lambda args: None, lambda line: None, lambda: None)
    assert host.kernel(SWIGLU).why == "for a test"
    assert host.missing_kernel("swiglu") is None
    assert host.missing_kernel("rms_norm") == "the other backend has no kernel 'rms_norm'"
    assert RMS_NORM not in host.kernels
    with pytest.raises(KeyError):
        host.kernel(RMS_NORM)


def test_a_contract_has_one_kernel() -> None:
    kernel = reference_kernel(SWIGLU, "for a test")
    with pytest.raises(ValueError, match="two kernels of the contract 'swiglu'"):
        Kernels(kernel, kernel)
    assert Kernels(kernel).replaced(KERNELS[SWIGLU])[SWIGLU] is KERNELS[SWIGLU]


def test_a_call_outside_the_range_runs_the_reference_and_says_so_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accel_bridge.process.log.FALLBACKS", {})
    tensor = random(1, 2, 3, 8, dtype=torch.float32)
    options = AttentionOptions(layout="BNSD", mask=AttentionMask(causal=True), return_lse=True)
    for _ in range(2):
        output, lse = KERNELS[ATTENTION](tensor, tensor, tensor, options)
    expected = ATTENTION.reference(tensor, tensor, tensor, options)
    assert torch.equal(output, expected[0])
    assert torch.equal(lse, expected[1])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "attention: reference instead of torch.nn.functional" in lines[0]
    assert "log-sum-exp" in lines[0]


def test_autocast_does_not_reach_into_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_bridge.kernels._contract._CONTRACTS", {})
    contract = Contract("product", torch.matmul, "xy", "here")
    kernel = contract.kernel(torch.matmul, "as it is")
    refusing = contract.kernel(torch.matmul, "never", lambda *args, **kwargs: "not today")
    values = torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.matmul(values, values).dtype == torch.bfloat16, "what must not happen"
        assert kernel(values, values).dtype == torch.float32
        assert refusing(values, values).dtype == torch.float32
        assert torch.is_autocast_enabled("cpu")
