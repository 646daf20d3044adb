"""Helpers of the kernel tests."""

from __future__ import annotations

from typing import Any

from accel_bridge.apps.parity._cases import all_cases
from accel_bridge.apps.parity._run import CaseResult, check_kernel
from accel_bridge.kernels import Kernel
from accel_bridge.kernels.cases import Case

from .upstream import random

__all__ = ["CASES", "failures", "random"]

CASES = all_cases()


def failures(kernel: Kernel[Any, Any], cases: tuple[Case, ...] = CASES) -> list[CaseResult]:
    """The rows of the tolerances that ``kernel`` fails."""
    return [row for row in check_kernel(kernel, cases) if row.verdict == "fail"]
