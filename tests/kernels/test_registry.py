"""Contracts, kernels, and the choice between them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import pytest
import torch

from accel_bridge._backend import Backend, DeviceSpec, Probe
from accel_bridge.apps.parity import signature_difference
from accel_bridge.backends.cpu.kernels import KERNELS
from accel_bridge.kernels import CONTRACTS, AttentionMask, Contract, Kernel, resolve
from accel_bridge.kernels._contract import _REPORTED

from .support import random


class Other(Backend):
    """A backend with one kernel."""

    name = "other"
    title = "Other"
    priority = 1

    def probe(self) -> Probe:
        return Probe(True, "for a test")

    def device(self) -> DeviceSpec | None:
        return None

    def kernels(self) -> Mapping[str, Kernel]:
        return {"swiglu": Kernel("swiglu", CONTRACTS["swiglu"].reference, "for a test")}


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=list(CONTRACTS))
def test_reference_has_the_parameters_of_its_protocol(contract: Contract) -> None:
    protocol = list(inspect.signature(contract.signature.__call__).parameters.values())[1:]
    reference = list(inspect.signature(contract.reference).parameters.values())
    assert [(p.name, p.kind, p.default) for p in reference] == [
        (p.name, p.kind, p.default) for p in protocol
    ]


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=list(CONTRACTS))
def test_every_parameter_of_a_contract_is_documented(contract: Contract) -> None:
    assert contract.formula
    assert contract.source
    documented = contract.doc
    for name in inspect.signature(contract.reference).parameters:
        assert name in documented, f"{contract.name} does not explain {name}"


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=list(KERNELS))
def test_cpu_kernels_follow_their_contracts(kernel: Kernel) -> None:
    assert signature_difference(kernel) is None
    assert kernel.why
    assert kernel.is_reference == kernel.why.startswith("reference: ")


def test_the_cpu_has_a_kernel_for_every_contract() -> None:
    assert set(KERNELS) == set(CONTRACTS)


def test_another_signature_is_seen() -> None:
    def swiglu(input: torch.Tensor) -> torch.Tensor:
        return input

    difference = signature_difference(Kernel("swiglu", swiglu, "for a test"))
    assert difference is not None
    assert "bias" in difference


def test_resolve_takes_the_backends_kernel_or_the_reference_with_the_reason() -> None:
    assert resolve("swiglu", Other()).why == "for a test"
    kernel = resolve("rms_norm", Other())
    assert kernel.is_reference
    assert kernel.why == "reference: backend other has no kernel for rms_norm"
    with pytest.raises(KeyError):
        resolve("no such contract", Other())


def test_a_call_outside_the_range_runs_the_reference_and_says_so_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accel_bridge.kernels._contract._REPORTED", set())
    tensor = random(1, 2, 3, 8, dtype=torch.float32)
    options = {"layout": "BNSD", "mask": AttentionMask(causal=True), "return_lse": True}
    for _ in range(2):
        output, lse = KERNELS["attention"](tensor, tensor, tensor, **options)
    expected = CONTRACTS["attention"].reference(tensor, tensor, tensor, **options)
    assert torch.equal(output, expected[0])
    assert torch.equal(lse, expected[1])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "attention: reference instead of torch.nn.functional" in lines[0]
    assert "log-sum-exp" in lines[0]


def test_a_call_inside_the_range_runs_the_kernel() -> None:
    kernel = Kernel("swiglu", lambda input, bias=None: "ran", "for a test")
    assert kernel(random(2, 4)) == "ran"
    assert ("swiglu", "") not in _REPORTED
