"""What scripts import for its effect: the active bridge has it."""

from __future__ import annotations


def repatch(args: object = None) -> None:
    """MindSpeed applies its patches again with other arguments; there are none here."""


def patch_features() -> None:
    """MindSpeed applies the patches of its features; there are none here."""
