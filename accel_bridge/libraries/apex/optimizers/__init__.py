"""Optimizers that update all parameters at once."""

from __future__ import annotations

from .fused_adam import FusedAdam
from .fused_sgd import FusedSGD

__all__ = ["FusedAdam", "FusedSGD"]
