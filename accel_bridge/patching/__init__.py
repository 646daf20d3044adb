"""Patches: records of what is changed in somebody else's code, and the engine that does it."""

from __future__ import annotations

from accel_bridge.patching._against import (
    Fit,
    Verdict,
    against_tree,
    against_version,
    known_versions,
)
from accel_bridge.patching._argument import Argument, Spelling
from accel_bridge.patching._around import after, before
from accel_bridge.patching._draft import draft
from accel_bridge.patching._engine import PatchEngine
from accel_bridge.patching._record import Kind, Patch, PatchContext, Shape, State, Status
from accel_bridge.patching.order import armed
from accel_bridge.patching.source import source_digest
from accel_bridge.patching.static import SourceTree
from accel_bridge.patching.variants import Chosen, choose, made_for

__all__ = [
    "Argument",
    "Chosen",
    "Fit",
    "Kind",
    "Patch",
    "PatchContext",
    "PatchEngine",
    "Shape",
    "SourceTree",
    "Spelling",
    "State",
    "Status",
    "Verdict",
    "after",
    "against_tree",
    "against_version",
    "armed",
    "before",
    "choose",
    "draft",
    "known_versions",
    "made_for",
    "source_digest",
]
