"""Patches: records of what is changed in somebody else's code, and the engine that does it."""

from __future__ import annotations

from accel_bridge.patching._against import (
    Fit,
    Verdict,
    against_tree,
    against_version,
    draft,
    known_versions,
)
from accel_bridge.patching._engine import PatchEngine, armed
from accel_bridge.patching._record import (
    Argument,
    Kind,
    Patch,
    PatchContext,
    Shape,
    Spelling,
    State,
    Status,
    after,
    around,
    before,
)
from accel_bridge.patching.source import SourceTree, source_digest
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
    "around",
    "before",
    "choose",
    "draft",
    "known_versions",
    "made_for",
    "source_digest",
]
