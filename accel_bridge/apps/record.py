"""``python -m accel_bridge.apps.record PLAN [-m] SCRIPT ARGUMENTS``: run a script and record it.

What ``accel-bridge parity record`` starts on every rank: :mod:`accel_bridge.run` with a plan.
"""

from __future__ import annotations

import sys

from accel_bridge.apps.cli.env import look
from accel_bridge.recording import Plan, set_plan
from accel_bridge.run import main

if __name__ == "__main__":
    set_plan(Plan.from_word(sys.argv[1]), lambda: look(with_imports=False).as_json())
    raise SystemExit(main(sys.argv[2:]))
