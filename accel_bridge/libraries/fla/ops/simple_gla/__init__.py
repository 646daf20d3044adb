"""Linear attention with one decay per head."""

from __future__ import annotations

from .chunk import chunk_simple_gla
from .fused_recurrent import fused_recurrent_simple_gla

__all__ = ["chunk_simple_gla", "fused_recurrent_simple_gla"]
