"""What `accel-bridge doctor` asks and is told: checks, and what they find."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from accel_bridge._errors import BridgeError
    from accel_bridge._machine import Machine

_NAME: Final = re.compile(r"[a-z][a-z0-9-]*")


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
    :param next: the command or edit that mends it; empty for what is well.
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


@dataclass(frozen=True, slots=True)
class Check:
    """One question to a machine. It is asked in a process of its own, with a time limit.

    :param name: lower case, digits and dashes; unique.
    :param subject: heading under which it is listed, e.g. ``PyTorch``.
    :param looks_for: the fault that it looks for, in one line.
    :param run: gives the findings. What it raises is shown, and stops no other check.
    :param with_run: whether it needs a training command (``doctor -- ARGUMENTS``).
    :param seconds: that it may take.
    :raises ValueError: ``name`` does not look like one.
    """

    name: str
    subject: str
    looks_for: str
    run: Callable[[Machine], Iterable[Finding]]
    with_run: bool = False
    seconds: float = 20.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} cannot be the name of a check")
