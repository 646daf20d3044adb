"""What ``nvidia-smi`` says of the GPUs, for `accel-bridge doctor`."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from typing import Final

from accel_bridge.plugins.checks import Machine

#: Field of :class:`Gpu` -> what ``nvidia-smi --help-query-gpu`` calls it.
_FIELDS: Final = {
    "index": "index",
    "uuid": "uuid",
    "name": "name",
    "driver": "driver_version",
    "capability": "compute_cap",
    "total": "memory.total",
    "used": "memory.used",
    "mode": "compute_mode",
    "mig": "mig.mode.current",
    "errors": "ecc.errors.uncorrected.volatile.total",
    "slowdown": "clocks_throttle_reasons.hw_slowdown",
}
#: Seconds; it takes several where the driver is not kept loaded.
_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as nvidia-smi describes it. What it does not know is empty or 0.

    :param capability: e.g. ``(9, 0)``.
    :param total: bytes.
    :param used: bytes, of all processes.
    :param mode: compute mode, e.g. ``Default``.
    :param mig: ``Enabled``, ``Disabled`` or empty.
    :param errors: uncorrected memory errors since the driver was loaded.
    :param slowdown: the hardware slows it down, by heat or power.
    """

    index: int
    uuid: str
    name: str
    driver: str
    capability: tuple[int, int]
    total: int
    used: int
    mode: str
    mig: str
    errors: int
    slowdown: bool


@dataclass(frozen=True, slots=True)
class Smi:
    """The answer.

    :param problem: why there is none; None where there is one, or no nvidia-smi.
    """

    gpus: tuple[Gpu, ...] = ()
    problem: str | None = None


def ask_smi(machine: Machine) -> Smi:
    """Ask for every GPU; empty where nvidia-smi is not installed."""
    program = machine.program("nvidia-smi")
    if program is None:
        return Smi()
    query = f"--query-gpu={','.join(_FIELDS.values())}"
    status, printed = machine.output(
        program, query, "--format=csv,noheader,nounits", seconds=_SECONDS
    )
    if status != 0:
        lines = printed.strip().splitlines() or [f"exit status {status}"]
        return Smi(problem=lines[0])
    rows = (row for row in csv.reader(printed.splitlines()) if len(row) == len(_FIELDS))
    return Smi(tuple(_gpu(dict(zip(_FIELDS, map(str.strip, row), strict=True))) for row in rows))


def _gpu(row: dict[str, str]) -> Gpu:
    capability = re.fullmatch(r"(\d+)\.(\d+)", row["capability"])
    return Gpu(
        index=_number(row["index"]),
        uuid=row["uuid"],
        name=row["name"],
        driver=row["driver"],
        capability=(int(capability[1]), int(capability[2])) if capability else (0, 0),
        total=_number(row["total"]) * 2**20,
        used=_number(row["used"]) * 2**20,
        mode=row["mode"],
        mig=row["mig"] if row["mig"].endswith("abled") else "",
        errors=_number(row["errors"]),
        slowdown=row["slowdown"] == "Active",
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0  # "[N/A]"
