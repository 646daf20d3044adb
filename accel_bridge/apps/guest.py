"""``accel_bridge.auto`` for programs whose plugin loaders pass over errors: one ends the process.

Such a program would go on without the bridge, and stop later for a reason that explains nothing.
"""

from __future__ import annotations

from accel_bridge.errors import BridgeError
from accel_bridge.process.endings import report

try:
    import accel_bridge.auto  # noqa: F401
except BridgeError as error:
    raise SystemExit(report(error, error)) from error
