"""Helpers of the kernel tests."""

from __future__ import annotations

import torch

from accel_bridge.kernels import Kernel
from accel_bridge.parity import Case, CaseResult, all_cases, check_kernel

CASES = all_cases()


def random(*size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Normally distributed numbers, the same in every call with the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)


def failures(kernel: Kernel, cases: tuple[Case, ...] = CASES) -> list[CaseResult]:
    """The rows of the ladder that ``kernel`` fails."""
    return [row for row in check_kernel(kernel, cases) if row.verdict == "fail"]
