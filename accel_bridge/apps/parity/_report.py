"""The report of ``accel-bridge parity kernels``: rows worst first, as table, JSON and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from accel_bridge.apps._html import finite, page, paragraphs, table
from accel_bridge.apps.parity._case import (
    BACKWARD_LIMIT,
    FLOOR,
    FORWARD_LIMIT,
    Measurement,
)
from accel_bridge.apps.parity._run import CaseResult, KernelReport
from accel_bridge.kernels.cases import Rule

#: Raised when a field of the JSON sequence changes its meaning.
FORMAT: Final = 1
RULE: Final = (
    f"ratio = max|kernel - float64| / (max|plain PyTorch - float64| + rounding), at most "
    f"{FORWARD_LIMIT:g} forward and {BACKWARD_LIMIT:g} backward; bitwise where nothing is computed"
)


#: Headings of :func:`cells`.
COLUMNS: Final = ("kernel", "case", "dtype", "forward", "backward", "verdict")
#: Headings of :func:`summary`.
SUMMARY_COLUMNS: Final = ("kernel", "rows", "failed", "worst", "implementation")


def cells(row: CaseResult) -> list[str]:
    """One row as text: the worst forward and backward ratios, and what went wrong."""
    forward = [part for part in row.measurements if not part.part.startswith("grad ")]
    backward = [part for part in row.measurements if part.part.startswith("grad ")]
    return [
        row.case.contract,
        row.case.name,
        str(row.case.dtype).removeprefix("torch."),
        _worst(forward),
        _worst(backward),
        verdict_text(row),
    ]


def verdict_text(row: CaseResult) -> str:
    """The verdict, with the reason when it is not a pass."""
    if row.verdict == "pass":
        return "pass"
    if row.reason:
        return f"{row.verdict}: {row.reason}"
    failed = [
        f"{part.part} {part.note or f'{_number(part.ratio)} > {part.limit:g}'}"
        for part in row.measurements
        if not part.passed
    ]
    return f"{row.verdict}: {'; '.join(failed)}"


def summary(report: KernelReport) -> list[list[str]]:
    """One line per kernel."""
    lines = []
    for kernel in report.kernels:
        rows = [row for row in report.results if row.case.contract == kernel.contract.name]
        failed = sum(row.verdict == "fail" for row in rows)
        worst = max(
            (part for row in rows for part in row.measurements),
            key=attrgetter("severity"),
            default=None,
        )
        lines.append(
            [
                kernel.contract.name,
                str(len(rows)),
                str(failed),
                "-" if worst is None else f"{_number(worst.ratio)} of {worst.limit:g}",
                kernel.why if kernel.is_reference else f"{kernel.source}: {kernel.why}",
            ]
        )
    return lines


def as_json(report: KernelReport) -> dict[str, object]:
    """The report as a JSON sequence; ratios that are not finite are strings."""
    return {
        "format": FORMAT,
        "passed": report.passed,
        "verdict": report.verdict,
        "backend": report.backend,
        "why": report.why,
        "device": report.device,
        "versions": report.versions,
        "rule": RULE,
        "floor": FLOOR,
        "kernels": [
            {
                "contract": kernel.contract.name,
                "source": kernel.source,
                "why": kernel.why,
                "reference": kernel.is_reference,
                "signature": report.signatures.get(kernel.contract.name, "as in the contract"),
            }
            for kernel in report.kernels
        ],
        "rows": [_row_as_json(row) for row in report.worst_first],
    }


def as_html(report: KernelReport) -> str:
    facts = (
        report.why,
        f"device: {report.device}",
        *(f"{name} {version}" for name, version in report.versions.items()),
        RULE,
        *(f"{name}: {text}" for name, text in report.signatures.items()),
    )
    rows = report.worst_first
    parts = [
        paragraphs(facts),
        "<h2>Kernels</h2>",
        table(SUMMARY_COLUMNS, summary(report)),
        "<h2>Rows, worst first</h2>",
        table(COLUMNS, [cells(row) for row in rows], [row.verdict for row in rows]),
    ]
    verdict = "pass" if report.passed else "fail"
    return page("accel-bridge parity", report.verdict, parts, verdict=verdict)


def _row_as_json(row: CaseResult) -> dict[str, object]:
    return {
        "kernel": row.case.contract,
        "case": row.case.name,
        "dtype": str(row.case.dtype).removeprefix("torch."),
        "verdict": row.verdict,
        "reason": row.reason,
        "parts": [
            {
                "part": part.part,
                "rule": part.rule.value,
                "ratio": finite(part.ratio),
                "limit": part.limit,
                "error": finite(part.error),
                "baseline": finite(part.baseline),
                "note": part.note,
                "passed": part.passed,
            }
            for part in row.measurements
        ],
    }


def _worst(parts: Sequence[Measurement]) -> str:
    worst = max(parts, key=attrgetter("severity"), default=None)
    if worst is None:
        return "-"
    if worst.rule is Rule.BITWISE:
        return "equal" if worst.passed else "differs"
    return _number(worst.ratio)


def _number(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 1000 else f"{ratio:.1e}"
