"""How an examination is shown: what is wrong first, in three parts; one line when nothing is."""

from __future__ import annotations

import collections
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Final

from accel_bridge.apps.doctor._examination import Result
from accel_bridge.errors import printable
from accel_bridge.plugins.checks import Finding, Verdict

_LABEL: Final = {Verdict.OK: "ok", Verdict.WARNING: "warning", Verdict.FAILS: "would fail"}
_NARROWEST: Final = 30


def exit_status(results: Sequence[Result]) -> int:
    """1 when something would fail."""
    return int(any(result.verdict is Verdict.FAILS for result in results))


def as_json(results: Sequence[Result]) -> dict[str, object]:
    """The examination as a JSON document."""
    return {
        "verdict": _worst(results).value,
        "would_fail": _count(results, Verdict.FAILS),
        "warnings": _count(results, Verdict.WARNING),
        "checks": [
            {
                "name": result.check.name,
                "subject": result.check.subject,
                "looks_for": result.check.looks_for,
                "verdict": result.verdict.value,
                "broken": result.broken,
                "findings": [
                    {
                        "verdict": finding.verdict.value,
                        "what": finding.what,
                        "evidence": list(finding.evidence),
                        "next": finding.next,
                    }
                    for finding in result.findings
                ],
            }
            for result in results
        ],
    }


def show(results: Sequence[Result], everything: bool) -> None:
    """Print what is wrong, the worst first; ``everything`` also what is well."""
    wanted = [Verdict.FAILS, Verdict.WARNING, *([Verdict.OK] if everything else [])]
    shown = False
    for verdict in wanted:
        for result in results:
            for finding in result.findings:
                if finding.verdict is verdict:
                    _show(result, finding)
                    shown = True
    if shown:
        print()
    print(_summary(results))


def _show(result: Result, finding: Finding) -> None:
    label = _LABEL[finding.verdict]
    _print(f"{label}: {finding.what}", "", "    ")
    for line in finding.evidence:
        _print(line, "  evidence: ", "    ")
    if finding.next:
        # As it is: a command with line ends in it cannot be copied.
        print(printable(f"  next:     {finding.next}"))


def _print(text: str, first: str, others: str) -> None:
    """Wrapped on a terminal, at words; as one line elsewhere."""
    text = printable(text)
    if not sys.stdout.isatty():
        print(first + text)
        return
    width = max(_NARROWEST, shutil.get_terminal_size().columns)
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
    print("\n".join(lines))


def _summary(results: Sequence[Result]) -> str:
    by = collections.Counter(result.verdict for result in results)
    parts = [f"{by[Verdict.OK]} passed"]
    parts += [f"{by[Verdict.WARNING]} with a warning"] if by[Verdict.WARNING] else []
    parts += [f"{by[Verdict.FAILS]} would fail"] if by[Verdict.FAILS] else []
    return f"{len(results)} check{'s' if len(results) != 1 else ''}: {', '.join(parts)}"


def _count(results: Sequence[Result], verdict: Verdict) -> int:
    return sum(finding.verdict is verdict for result in results for finding in result.findings)


def _worst(results: Sequence[Result]) -> Verdict:
    worst_first = (Verdict.FAILS, Verdict.WARNING)
    return next((one for one in worst_first if _count(results, one)), Verdict.OK)
