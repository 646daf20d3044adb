"""Runs the hand-written cases on the emulated NPU; with ``injected``, those that must be caught.

Started under ``accel-bridge emulate-ascend`` with the report's file.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import attention
import elementwise
import experts
import fused
import injected
import layers
import legacy
import lists
import randomness
import refusals
import torch
import torch_npu  # noqa: F401
from cases import Case
from comparison import Report, difference

MODULES = (elementwise, lists, layers, experts, attention, fused, legacy)
CHECKS = {**randomness.CHECKS, **attention.CHECKS, **refusals.CHECKS}


def main() -> int:
    """Run the cases whose names start with a word of the command line, or all."""
    words = tuple(sys.argv[2:])
    warnings.simplefilter("ignore")
    cases = {name: case for module in MODULES for name, case in module.CASES.items()}
    with open(sys.argv[1], "w") as stream:
        report = Report(stream)
        for name, case in {**cases, **injected.CASES}.items():
            if name.startswith(words or ""):
                report.run(name, lambda case=case: compare(case))  # type: ignore[misc]
        for name, check in CHECKS.items():
            if name.startswith(words or ""):
                report.run(name, lambda check=check: verdict(check))  # type: ignore[misc]
    return 0


def compare(case: Case) -> str:
    """The same case on both devices, from one seed."""
    torch.manual_seed(0)
    want = case("cpu")
    torch.manual_seed(0)
    return difference(case("npu"), want)


def verdict(check: Callable[[], None]) -> str:
    """What an assertion of the check says, or nothing."""
    torch.manual_seed(0)
    try:
        check()
    except AssertionError as error:
        return str(error) or "an assertion does not hold"
    return ""


if __name__ == "__main__":
    sys.exit(main())
