"""A training run as it is watched: one line that moves, and a log with everything that was said.

:mod:`._lines` reads logs of Megatron and its relatives, :mod:`.screen` shows what matters of them,
:mod:`._command` runs a command into a log file and follows it.
"""

from __future__ import annotations

from accel_bridge.process.progress._command import is_wanted, new_log, run
from accel_bridge.process.progress._lines import (
    FACTS,
    LOSSES,
    Iteration,
    LogReader,
    facts_line,
)

__all__ = [
    "FACTS",
    "LOSSES",
    "Iteration",
    "LogReader",
    "facts_line",
    "is_wanted",
    "new_log",
    "run",
]
