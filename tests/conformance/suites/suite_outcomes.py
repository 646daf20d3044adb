"""Names of tests as the reviewed lists write them, and what a test said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def matches(pattern: str, test: str) -> bool:
    """Whether ``test`` (file::name) is one that ``pattern`` names; ``*`` stands for anything.

    Names of tests hold brackets, which fnmatch reads as sets.
    """
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), test) is not None


def said(report: Any) -> tuple[str, str]:
    """(message, file:line) of a failure or a skip, as pytest reports it; None is a pass."""
    if report is None:
        return "", ""
    text = str(report.longrepr or "")
    if report.outcome == "skipped":
        return text[-300:], ""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message)[:700], f"{_short(str(crash.path))}:{crash.lineno}"
    lines = [line[2:].strip() for line in text.splitlines() if line.startswith("E ")]
    named = (line for line in lines if "Error" in line)
    return next(named, lines[-1] if lines else text[-300:])[:700], ""


def _short(path: str) -> str:
    """A path below the directory that holds its package."""
    for part in ("/tests/unit_tests/", "/site-packages/"):
        if part in path:
            return path.rpartition(part)[2]
    return path


def counts_text(counts: Mapping[str, int]) -> str:
    """``3 failed, 12 passed``."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "nothing"
