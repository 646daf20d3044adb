"""Every kernel of the CPU, and every reference, on the whole ladder."""

from __future__ import annotations

import pytest

from accel_bridge.apps.parity import check_kernel
from accel_bridge.backends.cpu.kernels import KERNELS
from accel_bridge.kernels import CONTRACTS, reference_kernel

from .support import CASES, failures


@pytest.mark.parametrize("name", list(CONTRACTS))
def test_cpu_kernel_passes(name: str) -> None:
    assert failures(KERNELS[CONTRACTS[name]]) == []


@pytest.mark.parametrize("name", list(CONTRACTS))
def test_reference_passes_every_case_and_is_outside_of_none(name: str) -> None:
    rows = check_kernel(reference_kernel(CONTRACTS[name], "for a test"), CASES)
    assert rows
    assert {row.verdict for row in rows} == {"pass"}
