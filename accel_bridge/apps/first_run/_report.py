"""The one file of a first run: what was found in words, as JSON, and every log."""

from __future__ import annotations

import io
import json
import platform
import time
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from accel_bridge import __version__
from accel_bridge.apps.first_run._machine import FirstMachine
from accel_bridge.apps.first_run._steps import Result, table

#: Name of the first member, by which an earlier file is recognized.
MARK: Final = "accel-bridge-first-run.txt"
#: Bytes of a file; of a longer one, the end is kept.
_MOST: Final = 1 << 24


def as_json(machine: FirstMachine, results: Sequence[Result]) -> dict[str, Any]:
    """Everything that was found, as a JSON document."""
    return {
        "accel_bridge": __version__,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "platform": platform.platform(),
        "backend": machine.backend,
        "title": machine.title,
        "chosen": machine.why,
        "devices": machine.devices,
        "speed_means_something": machine.real,
        "passed": all(one.passed for one in results),
        "steps": [asdict(one) for one in results],
    }


def as_text(machine: FirstMachine, results: Sequence[Result]) -> str:
    """The same in words."""
    lines = [
        f"accel_bridge {__version__}, first run on {machine.title}, {machine.devices} device(s)",
        f"chosen: {machine.why}",
        "",
    ]
    for name, verdict, seconds, summary in table(list(results)):
        lines.append(f"{name:<12}{verdict:<12}{seconds:>7}  {summary}")
    for one in results:
        if one.rows:
            lines += ["", f"{one.name}:"]
            if not machine.real:
                lines[-1] += " (no real device: these show that it runs, not how fast)"
            lines += [
                f"  {row['layout']}: {row['seconds per step']:.3f} s/step, "
                f"{row['tokens per second']:.0f} tokens/s, "
                f"{row['TFLOP/s per device']:.4g} TFLOP/s per device, loss {row['loss']:.4f}"
                for row in one.rows
            ]
        if not one.passed:
            lines += ["", f"{one.name} {one.verdict}:", *(f"  {line}" for line in one.evidence)]
    return "\n".join(lines) + "\n"


def pack(machine: FirstMachine, results: Sequence[Result], folder: Path) -> bytes:
    """The file to send: the report, and everything in ``folder``."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(MARK, as_text(machine, results))
        packed.writestr("report.json", json.dumps(as_json(machine, results), indent=1))
        for path in sorted(folder.glob("*")):
            if path.is_file():
                packed.writestr(path.name, path.read_bytes()[-_MOST:])
    return stream.getvalue()
