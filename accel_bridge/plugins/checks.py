"""What `accel-bridge doctor` asks a machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from accel_bridge.plugins.findings import Finding
from accel_bridge.plugins.machine import Machine

_NAME: Final = re.compile(r"[a-z][a-z0-9-]*")


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
