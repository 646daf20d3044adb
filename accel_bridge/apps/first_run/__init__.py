"""``accel-bridge first-run``: everything that a new machine should show, in one file to send."""

from __future__ import annotations

from accel_bridge.apps.first_run._machine import FirstMachine, look
from accel_bridge.apps.first_run._report import as_json, as_text, pack
from accel_bridge.apps.first_run._steps import Result, Steps

__all__ = ["FirstMachine", "Result", "Steps", "as_json", "as_text", "look", "pack"]
