"""What a check of `accel-bridge doctor` found: a verdict, the evidence, what fixes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel_bridge.errors import BridgeError


class Verdict(Enum):
    """What a finding means for a training that starts now."""

    OK = "ok"
    #: It starts, but slower, less safely or otherwise than asked for.
    WARNING = "warning"
    #: It would stop, hang, or compute something else.
    FAILS = "would fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found.

    :param what: one sentence, without a full stop.
    :param evidence: what was looked at and what it said, one line each.
    :param next: the command or edit that fixes it; empty for what is well.
    """

    verdict: Verdict
    what: str
    evidence: tuple[str, ...] = ()
    next: str = ""


def ok(what: str, *evidence: str) -> Finding:
    """Something that is well; shown by ``--all``."""
    return Finding(Verdict.OK, what, evidence)


def warning(what: str, *evidence: str, next: str) -> Finding:
    """Training starts, but slower, less safely or otherwise than asked for."""
    return Finding(Verdict.WARNING, what, evidence, next)


def fails(what: str, *evidence: str, next: str) -> Finding:
    """Training would stop, hang, or compute something else."""
    return Finding(Verdict.FAILS, what, evidence, next)


def of_error(error: BridgeError, verdict: Verdict = Verdict.FAILS) -> Finding:
    """An error in three parts, as a finding."""
    return Finding(verdict, error.what.rstrip("."), error.evidence, error.next)


def milder(finding: Finding) -> Finding:
    """The finding as a warning at most."""
    if finding.verdict is Verdict.FAILS:
        return replace(finding, verdict=Verdict.WARNING)
    return finding
