"""Patches: records of what is changed in somebody else's code, and the engine that does it."""

from __future__ import annotations

from accel_bridge.patching._engine import PatchEngine
from accel_bridge.patching._record import Kind, Patch, PatchContext, State, Status

__all__ = ["Kind", "Patch", "PatchContext", "PatchEngine", "State", "Status"]
