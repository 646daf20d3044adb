"""What tests of Transformer Engine's modules share."""

from __future__ import annotations

import importlib
from typing import Any


def inside(name: str) -> Any:
    """A module of the shim, by its path inside ``transformer_engine.pytorch``."""
    return importlib.import_module(f"transformer_engine.pytorch.{name}")


def recipes() -> dict[str, Any]:
    recipe = importlib.import_module("transformer_engine.common.recipe")
    return {
        "delayed": recipe.DelayedScaling(),
        "tensorwise": recipe.Float8CurrentScaling(),
        "blockwise": recipe.Float8BlockScaling(),
    }
