"""Parity: does a kernel compute what its contract says, by a rule others trust?"""

from __future__ import annotations

from accel_bridge.apps.parity._case import (
    BACKWARD_LIMIT,
    FORWARD_LIMIT,
    Measurement,
    as_arguments,
    bitwise,
    by_ratio,
    convert_all,
)
from accel_bridge.apps.parity._cases import all_cases
from accel_bridge.apps.parity._report import (
    COLUMNS,
    RULE,
    SUMMARY_COLUMNS,
    as_html,
    as_json,
    cells,
    summary,
)
from accel_bridge.apps.parity._run import (
    CaseResult,
    KernelReport,
    check_backend,
    check_kernel,
    check_vocab_parallel,
    run_case,
    signature_difference,
)
from accel_bridge.kernels.cases import Case, Rule, convert

__all__ = [
    "BACKWARD_LIMIT",
    "COLUMNS",
    "FORWARD_LIMIT",
    "RULE",
    "SUMMARY_COLUMNS",
    "Case",
    "CaseResult",
    "KernelReport",
    "Measurement",
    "Rule",
    "all_cases",
    "as_arguments",
    "as_html",
    "as_json",
    "bitwise",
    "by_ratio",
    "cells",
    "check_backend",
    "check_kernel",
    "check_vocab_parallel",
    "convert",
    "convert_all",
    "run_case",
    "signature_difference",
    "summary",
]
