"""The Triton kernels' values, by Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from plugin_site import Python

from accel_bridge.apps.parity._run import signature_difference
from accel_bridge.backends.cuda.kernels import KERNELS
from accel_bridge.kernels import RMS_NORM, Kernel

pytest.importorskip("triton")


@pytest.mark.parametrize("kernel", list(KERNELS), ids=lambda kernel: kernel.contract.name)
def test_kernels_follow_their_contracts(kernel: Kernel[Any, Any]) -> None:
    assert signature_difference(kernel) is None


@pytest.mark.parametrize("supports", [lambda grad: None, lambda input, weight: None])
def test_a_supports_with_other_parameters_is_named(supports: Any) -> None:
    kernel = RMS_NORM.kernel(RMS_NORM.reference, "for a test", supports)
    assert str(signature_difference(kernel)).startswith("supports: ")


@pytest.mark.slow
def test_every_triton_kernel_stays_within_the_tolerance_policy_on_the_host() -> None:
    done = subprocess.run(  # for longer than `python` waits
        [sys.executable, Path(__file__).with_name("interpreted.py")],
        env={**os.environ, "ACCEL_BRIDGE_BACKEND": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    contracts = done.stdout.splitlines()
    assert len(contracts) > 20
    assert all(line.endswith(" 0 failed") for line in contracts)


@pytest.mark.slow
def test_triton_is_imported_by_a_kernel_alone_and_may_be_missing(python: Python) -> None:
    code = """
import sys
import accel_bridge.backends.cuda.kernels
print([name for name in sys.modules if name.split(".")[0] == "triton"])

for name in [name for name in sys.modules if name.startswith("accel_bridge.backends.cuda")]:
    del sys.modules[name]
sys.modules["triton"] = None
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else real(name, *rest)
from accel_bridge.backends.cuda.kernels import KERNELS
from accel_bridge.kernels import CROSS_ENTROPY, RMS_NORM, ROTARY
assert KERNELS[CROSS_ENTROPY].is_reference and "Triton is not installed" in KERNELS[ROTARY].why
import torch
x = torch.randn(8, 16)
KERNELS[RMS_NORM](x, torch.ones(16), eps=1e-5)
print("fine")
"""
    done = python("-c", code)
    assert done.stdout == "[]\nfine\n", done.stderr
