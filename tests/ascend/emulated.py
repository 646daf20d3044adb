"""Trains the test model on emulated NPUs."""

from __future__ import annotations

import sys

from end_to_end.launcher import Run, train


def emulated(*arguments: str, processes: int = 1, **options: object) -> Run:
    """``train`` on as many emulated NPUs as there are processes."""
    command = [sys.executable, "-m", "accel_bridge", "emulate-ascend"]
    before = [*command, "--devices", str(processes), "--"]
    return train(*arguments, processes=processes, before=before, **options)  # type: ignore[arg-type]
