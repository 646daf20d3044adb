"""``python -m accel_bridge.apps.record PLAN [-m] SCRIPT ARGUMENTS``: run a script and record it.

What ``accel-bridge parity record`` starts on every rank: :mod:`accel_bridge.run` with a plan.
``accel-bridge run --record`` lets every Python that activates call :func:`attach` instead.
"""

from __future__ import annotations

import os
import sys

from accel_bridge.apps.cli.env import look
from accel_bridge.recording import PLAN, Plan, set_plan
from accel_bridge.run import main


def attach() -> None:
    """Record this process's training as the environment says."""
    record(os.environ[PLAN])


def record(plan: str) -> None:
    """Record this process's training by ``plan``."""
    set_plan(Plan.from_word(plan), lambda: look(with_imports=False))


if __name__ == "__main__":
    record(sys.argv[1])
    raise SystemExit(main(sys.argv[2:]))
